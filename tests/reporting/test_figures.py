"""Figures: their format, colours, where axes end, and that no two names cover each other."""

import itertools

import numpy as np
import pytest

from flcore import registry
from flcore.reporting import figures, read_results
from flcore.reporting.labels import End, label_ends, settle, spread_out
from flcore.utils.errors import UsageError
from flcore.utils.runs.files import write_h5
from support import write_dataset
from support.results import curve, make_run, make_seeds


def results(*paths):
    return read_results(list(paths))[0]


def contrast_with_white(colour):
    """The contrast ratio of the Web Content Accessibility Guidelines."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 1.05 / (np.dot(linear, [0.2126, 0.7152, 0.0722]) + 0.05)


def overlaps(first, second):
    return first.x0 < second.x1 and second.x0 < first.x1 and first.y0 < second.y1 and second.y0 < first.y1


# ---- names


@pytest.mark.parametrize(
    ("wanted", "placed"),
    [
        ([10, 50, 90], [10, 50, 90]),  # enough room
        ([50, 50, 50], [40, 50, 60]),  # to both sides
        ([50, 52], [46, 56]),
        ([98, 99, 100], [75, 85, 95]),  # from the top edge downwards
        ([0, 1, 90], [5, 15, 90]),
    ],
)
def test_boxes_move_as_little_as_they_must(wanted, placed):
    assert spread_out(wanted, [10] * len(wanted), 0, 100) == pytest.approx(placed)


@pytest.mark.parametrize("heights", ["equal", "spread", "top", "crowd"])
def test_names_never_cover_each_other(heights):
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    values = {"equal": [50.0] * 3, "spread": [0.0, 50.0, 100.0], "top": [99.9, 99.95, 100.0], "crowd": [40.0] * 40}
    figure = Figure(figsize=(6, 3), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.set_ylim(0, 100)
    panel.set_xlim(0, 10)
    ends = [End(10, height, f"method {number}", "#000000") for number, height in enumerate(values[heights])]
    settle(figure, [(panel, label_ends(panel, ends))])
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in panel.texts]
    assert len(boxes) == len(ends)
    assert not any(overlaps(one, two) for one, two in itertools.combinations(boxes, 2))
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1 for box in boxes)
    assert matplotlib.get_backend().lower() == "agg"


@pytest.mark.parametrize("name", ["curves", "forgetting", "traffic", "seconds"])
def test_no_text_of_a_whole_figure_covers_another(tmp_path, name):
    for dataset, algorithm in itertools.product(
        ("Digits", "Cifar100"), ("FedAvg", "FedCPD", "FedRep", "Local", "MOON")
    ):
        make_seeds(tmp_path, algorithm, (0.5, 0.50001), dataset=dataset)
    make_run(
        tmp_path, "Ditto", goal="quick", arrays=curve(0.5) | {"rs_bytes_down": [2e4] * 2, "rs_seconds": [0.01] * 2}
    )
    figure = figures.FIGURES[name](results(tmp_path))
    figure.canvas.draw()
    boxes = [text.get_window_extent() for panel in figure.axes for text in panel.texts]
    boxes += [panel.get_window_extent() for panel in figure.axes]
    boxes += [panel.get_yticklabels()[0].get_window_extent() for panel in figure.axes]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    assert len(boxes) >= 11 + 2 + 2
    assert not any(overlaps(one, two) for one, two in itertools.combinations(boxes, 2))


# ---- colours and axes


def test_every_method_has_a_colour_of_its_own_that_can_be_read_on_white():
    names = [method.name for method in registry.METHODS]
    colours = [figures.colour_of(name) for name in names]
    assert set(names) <= set(figures.COLOURS) and len(set(colours)) == len(names)
    assert min(map(contrast_with_white, [*colours, *figures.OF_OTHERS])) > 2.4
    assert not set(figures.OF_OTHERS) & set(figures.COLOURS.values())


def test_a_methods_colour_does_not_depend_on_what_else_is_drawn(tmp_path):
    def lines(*paths):
        figure = figures.curves(results(*paths))
        return {text.end.name: text.end.colour for text in figure.axes[0].texts}

    one, two = make_seeds(tmp_path, "FedRep"), make_seeds(tmp_path, "MyMethod", (0.2,))
    assert lines(*one, *two)["FedRep"] == lines(*one)["FedRep"] == figures.COLOURS["FedRep"]
    assert lines(*one, *two)["MyMethod"] == lines(*two)["MyMethod"] == figures.colour_of("MyMethod")


def test_several_settings_of_a_method_share_its_colour_and_differ_in_the_marker(tmp_path):
    paths = make_seeds(tmp_path, accuracies=(0.2,), lr=1) + make_seeds(tmp_path, accuracies=(0.3,), first=1, lr=2)
    first, second = figures.lines_of(results(*paths), "Digits")
    assert first.colour == second.colour and {first.marker, second.marker} == {"", "o"}
    names = {text.end.name for text in figures.curves(results(*paths)).axes[0].texts}
    assert names == {"FedAvg (lr=1)", "● FedAvg (lr=2)"}


def test_axes_end_where_the_run_ends(tmp_path):
    found = results(*make_seeds(tmp_path))
    assert figures.curves(found).axes[0].get_xlim() == (0, 2)
    assert figures.forgetting(found).axes[0].get_xlim() == (1, 2)
    assert figures.traffic(found).axes[0].get_xlim() == (0, 6)  # MB: two rounds of 2 + 1
    assert figures.seconds(found).axes[0].get_xlim() == (0, 8)


def test_a_curve_is_the_mean_over_seeds_with_their_standard_deviation(tmp_path):
    found = figures.curve_of(results(*make_seeds(tmp_path, accuracies=(0.2, 0.3, 0.4))).rounds, "test_acc", 100)
    assert found.x.tolist() == [0, 1, 2]
    assert found.mean == pytest.approx([0, 15, 30]) and found.spread == pytest.approx([0, 5, 10])


def test_a_method_without_traffic_is_a_line_across(tmp_path):
    paths = make_seeds(tmp_path, "FedAvg", (0.4,))
    paths += [make_run(tmp_path, "Local", arrays=curve(0.5) | {"rs_bytes_down": [0, 0], "rs_bytes_up": [0, 0]})]
    panel = figures.traffic(results(*paths)).axes[0]
    assert {text.end.name for text in panel.texts} == {"FedAvg", "Local (no traffic)"}
    assert panel.get_xlim() == (0, 6)
    with pytest.raises(UsageError, match="none of these results tells the traffic"):
        figures.traffic(results(paths[1]))


def test_the_clients_figure_has_a_row_a_method_the_best_above(tmp_path):
    paths = make_seeds(tmp_path, "FedAvg", (0.3, 0.5)) + make_seeds(tmp_path, "FedRep", (0.6,))
    panel = figures.clients(results(*paths)).axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["FedAvg", "FedRep"]
    dots = [line.get_xdata() for line in panel.lines if line.get_marker() == "o"]
    assert dots[0] == pytest.approx([30, 50]) and dots[1] == pytest.approx([50, 70])  # mean over seeds, by client


def test_the_partition_is_that_of_the_runs(tmp_path):
    from flcore.data.reading import DataSet

    write_dataset(tmp_path, labels=[[0, 1], [1], [2, 0], [0, 1, 2]])
    digest = DataSet("Tiny", tmp_path).digest()
    found = results(make_run(tmp_path, dataset="Tiny", data_digest=digest))
    bubbles = figures.partition(found).axes[0].collections[0]
    assert len(bubbles.get_offsets()) == 2 + 1 + 2 + 3 and bubbles.get_array().sum() == 23 + 12 + 7 + 31
    (tmp_path / "Tiny" / "train" / "0.npz").unlink()
    with pytest.raises(UsageError, match="no longer the one that these results were made with"):
        figures.partition(found)


def test_one_round_is_seen(tmp_path):
    panel = figures.curves(results(make_run(tmp_path, arrays={"rs_test_acc": [0.5], "rs_round": [0]}))).axes[0]
    assert any(line.get_marker() == "o" for line in panel.lines)


# ---- files


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PDF", b"%PDF")]
)
def test_the_suffix_says_the_format(tmp_path, suffix, start):
    found = results(*make_seeds(tmp_path))
    paths = [tmp_path / "new" / f"{name}{suffix}" for name in ("one", "two")]
    for path in paths:
        figures.write(found, "curves", path)
    assert paths[0].read_bytes().startswith(start)
    assert paths[0].read_bytes() == paths[1].read_bytes()  # no date in it


@pytest.mark.parametrize("name", ["c.jpg", "c.eps", "c", "c.png.bak", ".png"])
def test_any_other_suffix_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=r"\.png, \.pdf, \.svg"):
        figures.write(results(*make_seeds(tmp_path)), "curves", tmp_path / name)
    assert not (tmp_path / name).exists()


def test_odd_numbers_are_drawn_without_them(tmp_path):
    write_h5(tmp_path / "a_b_c_0.h5", {"rs_test_acc": [0.1, np.inf, np.nan, -1e300]})
    figures.write(results(tmp_path / "a_b_c_0.h5"), "curves", tmp_path / "c.png")
    panel = figures.curves(results(tmp_path / "a_b_c_0.h5")).axes[0]
    assert panel.get_ylim()[1] < 101 and panel.get_ylim()[0] > -101
