"""Files of tensors that PFLlib's `save_item` and `load_item` write and read."""

import copy
import io
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flcore.utils.runs.files import whole_file


def save_item(item: Any, path: Path) -> None:
    """Saves tensors, containers of them, or a module's state, never a pickled object; complete or not at all."""
    content = io.BytesIO()  # torch has no OSError for a full disk
    torch.save(copy.copy(item.state_dict()) if isinstance(item, nn.Module) else item, content)
    with whole_file(path) as partial:
        partial.write_bytes(content.getbuffer())


def load_item(path: Path, device: Any) -> Any:
    return torch.load(path, weights_only=True, map_location=device)
