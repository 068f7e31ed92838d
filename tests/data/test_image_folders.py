"""Folders of images: what the files hold comes out with its values, and every layout with its classes and users."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from flcore.data.generate import generate
from flcore.data.image_folders import read_images, read_tiny_imagenet
from flcore.data.samples import scaled
from flcore.data.sources import Reading, load, read_source
from flcore.utils.errors import UsageError

SQUARE = np.array([[0, 51], [204, 255]], np.uint8)


def put(path, grey=7, size=(4, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, grey).save(path)


def one(path, image, **options):
    image.save(path, **options)
    x, notes = read_images([path])
    return x[0], notes


# --- values -----------------------------------------------------------------------------------------------------------


def test_grey_and_colour_of_eight_bits(tmp_path):
    x, _ = one(tmp_path / "a.png", Image.fromarray(SQUARE))
    assert x.tolist() == [SQUARE.tolist()] and x.dtype == np.uint8
    rgb = np.stack([SQUARE, 255 - SQUARE, SQUARE // 2], 2)
    x, _ = one(tmp_path / "b.png", Image.fromarray(rgb))
    np.testing.assert_array_equal(x, rgb.transpose(2, 0, 1))
    both, _ = read_images([tmp_path / "a.png", tmp_path / "b.png"])  # grey among colour
    np.testing.assert_array_equal(both[0], np.stack([SQUARE] * 3))


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_sixteen_bits_keep_their_range(tmp_path, name):
    """White is 65535, not 255: once every pixel was white."""
    deep = np.array([[0, 13107], [52428, 65535]], np.uint16)
    if name == "a.pgm":  # which old versions of Pillow read and do not write
        (tmp_path / name).write_bytes(b"P5 2 2 65535\n" + deep.astype(">u2").tobytes())
    else:
        Image.fromarray(deep).save(tmp_path / name)
    x = read_images([tmp_path / name])[0][0]
    assert x.dtype == np.uint16 and x.tolist() == [deep.tolist()]
    np.testing.assert_allclose(scaled(x[None])[0, 0], [[-1, -0.6], [0.6, 1]], atol=1e-6)
    Image.fromarray(SQUARE).save(tmp_path / "8.png")
    mixed, _ = read_images([tmp_path / name, tmp_path / "8.png"])
    np.testing.assert_array_equal(mixed[1, 0], SQUARE.astype(int) * 257)  # the same greys in the same range


def test_sixteen_bits_of_colour_become_eight(tmp_path):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    row = b"\0" + np.array([0, 65535, 0x8080, 2570, 5140, 7710], ">u2").tobytes()  # no filter; two pixels
    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
    x, _ = read_images([tmp_path / "a.png"])
    assert x[0, :, 0].T.tolist() == [[0, 255, 128], [10, 20, 30]] and x.dtype == np.uint8


@pytest.mark.parametrize(("dtype", "word"), [(np.int32, "int32"), (np.float32, "float32")])
def test_pixels_without_a_known_range_are_refused(tmp_path, dtype, word):
    with pytest.raises(UsageError, match=rf"a\.tif is not an image that can be read: its pixels are {word}, of which"):
        one(tmp_path / "a.tif", Image.fromarray(SQUARE.astype(dtype) * 100))


def test_palette_and_cmyk_come_in_their_colours(tmp_path):
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 10, 20, 30])
    palette.putpixel((1, 0), 1)
    x, notes = one(tmp_path / "a.png", palette)
    assert x[:, 0].T.tolist() == [[255, 0, 0], [10, 20, 30]] and notes == []
    x, _ = one(tmp_path / "a.tif", Image.new("CMYK", (1, 1), (255, 0, 0, 0)))
    assert x.ravel().tolist() == [0, 255, 255]


def test_transparent_parts_lie_over_white(tmp_path):
    pixels = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 51]]], np.uint8)
    x, notes = one(tmp_path / "a.png", Image.fromarray(pixels))
    assert x[:, 0].T.tolist() == [[10, 20, 30], [255] * 3, [204] * 3]
    assert notes == ["1 images have transparent parts, shown over white"]
    grey = np.array([[[100, 255], [100, 0]]], np.uint8)
    x, _ = one(tmp_path / "b.png", Image.fromarray(grey, "LA"))
    assert x.tolist() == [[[100, 255]]]  # stays grey
    palette = Image.new("P", (2, 1))
    palette.putpalette([1, 2, 3, 4, 5, 6])
    x, _ = one(tmp_path / "c.png", palette, transparency=0)
    assert x.ravel().tolist() == [255] * 6
    assert one(tmp_path / "d.png", Image.new("RGBA", (1, 1), (1, 2, 3, 255)))[1] == []


def test_photographs_come_upright_and_of_films_the_first_frame(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by 90 degrees clockwise
    x, _ = one(tmp_path / "a.png", Image.fromarray(SQUARE), exif=turned)
    np.testing.assert_array_equal(x[0], np.rot90(SQUARE, -1))
    frames = [Image.new("L", (2, 2), grey) for grey in (10, 200)]
    x, notes = one(tmp_path / "a.tif", frames[0], save_all=True, append_images=frames[1:])
    assert (x == 10).all() and notes == ["1 images have several frames, of which the first is taken"]


def test_image_size_resizes_height_by_width(tmp_path):
    put(tmp_path / "a" / "1.png", 10, (6, 3))
    put(tmp_path / "b" / "1.png", 20, (5, 5))
    put(tmp_path / "b" / "2.png", 30, (2, 2))
    with pytest.raises(UsageError, match="--image_size 3x6"):
        read_source(tmp_path)
    read = read_source(tmp_path, Reading(image_size=(2, 4)))
    assert read.x.shape == (3, 1, 2, 4) and read.x[:, 0, 1, 3].tolist() == [10, 20, 30]
    ramp = np.tile(np.arange(8, dtype=np.uint8) * 10, (2, 4, 1))  # antialiased: the mean of two columns
    np.savez(tmp_path / "s.npz", x=ramp, y=[0, 1])
    halved = load("Mine", tmp_path / "s.npz", tmp_path, how=Reading(image_size=(2, 4))).x
    assert halved.shape == (2, 1, 2, 4) and halved.dtype == np.uint8
    np.testing.assert_allclose(halved[0, 0, 0, 1:3], [25, 45], atol=1)


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_numeric_folders_come_in_the_order_of_their_numbers(tmp_path):
    for number in range(1, 13):
        put(tmp_path / str(number) / "a.png", number)
    put(tmp_path / "12" / "b.png", 12)
    read = read_source(tmp_path)
    assert read.class_names == tuple(map(str, range(1, 13)))
    assert read.x[:, 0, 0, 0].tolist() == [label + 1 for label in read.y]


def test_parts_are_merged_and_wrappers_opened(tmp_path):
    for i, part in enumerate(("train", "val", "test")):
        for j, name in enumerate(("cat", "dog")):
            put(tmp_path / "birds-v1" / part / name / "deep" / "x.png", 10 * i + j)
    put(tmp_path / "birds-v1" / "train" / "stray.png")
    put(tmp_path / "birds-v1" / "test" / "eel" / "x.png", 99)
    (tmp_path / "birds-v1" / "train" / "fox").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    put(tmp_path / "birds-v1" / "train" / "cat" / "._x.png")
    read = read_source(tmp_path)
    assert read.class_names == ("cat", "dog", "eel")
    assert sorted(zip(read.x[:, 0, 0, 0].tolist(), read.y.tolist(), strict=True)) == [
        (0, 0), (1, 1), (10, 0), (11, 1), (20, 0), (21, 1), (99, 2),
    ]  # fmt: skip
    for note in (
        "train, test, val are merged",
        "train itself, outside any class",
        "left out: train/fox",
        "every part: eel",
    ):
        assert any(note in said for said in read.notes), read.notes


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/1.png", "a/2.png"], "all images are of one class .a."),
        (["train/a/1.png", "train/b/1.png", "birds/1.png"], "train, which look like parts .* birds, which look like"),
        (["train/a/1.png", "train/b/1.png", "val/images/1.png"], "the classes images, the first part a, b: none in"),
        (["train/1.png", "test/1.png"], "test, train hold no folders of classes"),
    ],
)
def test_folders_that_contradict_each_other(tmp_path, files, message):
    for file in files:
        put(tmp_path / file)
    with pytest.raises(UsageError, match=message):
        read_source(tmp_path)


def test_unlabelled_test_images_are_passed_over(tmp_path):
    for file in ("train/a/1.png", "train/b/1.png", "test/1.png"):
        put(tmp_path / file)
    read = read_source(tmp_path)
    assert len(read.y) == 2 and "test/ has no folders of classes and is passed over" in read.notes


@pytest.fixture
def phones(tmp_path):
    """Users 1, 2, 10 with images of cat and dog; 10 has one image only."""
    for user, images in ((1, 6), (2, 4), (10, 1)):
        for i in range(images):
            put(tmp_path / "phones" / str(user) / ("cat" if i % 2 else "dog") / f"{i}.png", 10 * user + i)
    return tmp_path / "phones"


def test_one_client_a_user(phones, tmp_path, capsys):
    made = generate("Phones", tmp_path / "out", partition="natural", source=phones, user_folders=True)
    assert made.config["users"] == ["1", "2"] and made.config["class_names"] == ["cat", "dog"]
    assert made.config["Size of samples for labels in clients"] == [[(0, 3), (1, 3)], [(0, 2), (1, 2)]]
    assert "left out: 1 users with fewer than 2 samples (10)" in capsys.readouterr().out
    assert "2 classes (0: cat, 1: dog)" in str(read_source(phones, Reading(user_folders=True)))
    assert "(cat, dog); if they are users: --user_folders" in " ".join(read_source(phones).notes)
    assert not generate("Phones", tmp_path / "out", partition="natural", source=phones, user_folders=True).made
    for wrong, message in (
        ({"partition": "natural"}, "needs --user_folders, or --user_column NAME"),
        ({"partition": "natural", "user_folders": True, "num_clients": 3}, "leave --num_clients out"),
        ({"label_column": "y"}, "--label_column: .*phones is neither a table"),
    ):
        with pytest.raises(UsageError, match=message):
            generate("Phones", tmp_path / "two", source=phones, **wrong)
    with pytest.raises(UsageError, match="tell how to read a --source, which is missing"):
        generate("Digits", tmp_path / "two", partition="natural", user_folders=True)


def test_tiny_imagenet_in_its_official_layout(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for i, own in enumerate(("n02", "n01")):
        put(root / "train" / own / "images" / f"{own}_0.JPEG", 100 * i, (64, 64))
        (root / "train" / own / f"{own}_boxes.txt").write_text("")
    put(root / "val" / "images" / "val_0.JPEG", 9, (64, 64))
    root.joinpath("wnids.txt").write_text("n02\nn01\n")
    root.joinpath("words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tbullfrog\n")
    read = load("TinyImagenet", None, tmp_path)
    assert read.class_names == ("n01 goldfish", "n02 bullfrog") and read.y.tolist() == [0, 1]  # in PFLlib's order
    assert read.x.shape == (2, 1, 64, 64) and read.x[:, 0, 5, 5].tolist() == [100, 0]
    assert read_source(tmp_path).y.tolist() == [0, 1]
    (root / "train" / "n02" / "images" / "n02_0.JPEG").unlink()
    with pytest.raises(UsageError, match="lacks the images of train/n02"):
        read_tiny_imagenet(tmp_path)
