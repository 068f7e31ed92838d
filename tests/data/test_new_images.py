"""Images for a trained model are read as those that it was trained on."""

import numpy as np
import pytest
from PIL import Image

from flcore.data.generate import generate
from flcore.data.new_images import read_new
from flcore.data.reading import DataSet
from flcore.utils.errors import UsageError

NAMES = ("cat", "dog")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for name in NAMES:
        (root / name).mkdir()
        for i in range(8):
            Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(root / name / f"{i}.png")
    return root


def test_a_folder_gives_what_the_generator_stored(folder, tmp_path):
    """Every sample of the clients' files is among the images read again, with its class."""
    out = tmp_path / "Pets"
    generate("Pets", out, source=folder, image_size="8x6", num_clients=2, partition="iid", say=lambda line: None)
    data = DataSet("Pets", tmp_path)
    names, x, y = read_new(folder, data.shape(), data.class_names(), data)
    assert names[0] == "cat/0.png" and list(y) == [0] * 8 + [1] * 8
    again = {image.tobytes(): label for image, label in zip(x, y, strict=True)}
    for part in (data.read(i, is_train) for i in range(2) for is_train in (True, False)):
        assert [again[image.tobytes()] for image in part["x"]] == list(part["y"])
    names, x, y = read_new(out / "test" / "1.npz", data.shape(), data.class_names(), data)
    np.testing.assert_array_equal(x, data.read(1, is_train=False)["x"])


def test_colours_become_grey_and_grey_becomes_colours(tmp_path):
    """Red, green and blue weigh 0.299, 0.587 and 0.114: 255 becomes 76, 150 and 29, as Pillow says, too."""
    colours = np.zeros((1, 3, 3), np.uint8)
    colours[0, range(3), range(3)] = 255
    Image.fromarray(colours).save(tmp_path / "colours.png")
    names, x, y = read_new(tmp_path / "colours.png", (1, 1, 3), NAMES, DataSet("None", tmp_path))
    assert (names, y) == (["colours.png"], None)
    np.testing.assert_allclose((x * 0.5 + 0.5) * 255, [[[[76, 150, 29]]]], atol=1e-4)
    Image.fromarray(np.array([[0, 255]], np.uint8)).save(tmp_path / "grey.png")
    _, x, _ = read_new(tmp_path / "grey.png", (3, 1, 2), NAMES, DataSet("None", tmp_path))
    assert x.tolist() == [[[[-1, 1]]] * 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.with_name("gone.png"), "there is no"),
        (lambda path: np.savez(path.with_suffix(".npz"), z=1) or path.with_suffix(".npz"), "holds no x, but z"),
        (lambda path: np.save(path.with_suffix(".npy"), np.zeros((2, 1, 5, 5))) or path.with_suffix(".npy"),
         r"samples of shape \(1, 5, 5\), the model takes \(1, 4, 4\)"),
        (lambda path: path.write_text("no image") and path, "is not an image that can be read"),
        (lambda path: np.savez(path.with_suffix(".npz"), x=np.zeros((1, 4, 4)), y=["cow"]) or path.with_suffix(".npz"),
         "'cow' is none of the classes cat, dog"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_in_one_line(tmp_path, make, message):
    with pytest.raises(UsageError, match=message):
        read_new(make(tmp_path / "a.png"), (1, 4, 4), NAMES, DataSet("None", tmp_path))
