"""PFLlib's names for reading the data of a client."""

from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from flcore.data.reading import DataSet


def read_data(dataset: str, idx: int, is_train: bool = True) -> dict[str, NDArray[Any]]:
    """Client `idx`'s training or test images: {"x": float32 (n, *shape), "y": int64 (n)}.

    dataset: a name in dataset/ of this checkout, or the `args.dataset` of a run, which knows its folder.
    """
    return DataSet(dataset).read(idx, is_train)


def read_client_data(dataset: str, idx: int, is_train: bool = True, few_shot: int = 0) -> list[tuple[Tensor, Tensor]]:
    """The same as a list of (image, label); of the training data the first `few_shot` of each class, 0 for all."""
    return list(zip(*DataSet(dataset).tensors(idx, is_train, few_shot), strict=True))
