"""Figures of results as PNG, PDF or SVG: curves, spreads over clients, what was forgotten, what it cost.

A method has one colour in every figure. Several settings of it share the colour and have different markers.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flcore.data import plot
from flcore.data.reading import DataSet
from flcore.reporting.frames import Results
from flcore.reporting.labels import End, label_ends, settle
from flcore.reporting.tables import marks
from flcore.utils.errors import UsageError
from flcore.utils.runs.files import whole_file

# As far apart as twenty colours on white can be; the first eight, of the methods compared most, are told apart by
# colour-blind readers too (nearly those of Okabe and Ito), and every curve has its name beside it.
COLOURS = {
    "FedCPD": "#C8102E",
    "FedRep": "#0072B2",
    "FedAvg": "#000000",
    "Local": "#8A8A8A",
    "FedPer": "#009E73",
    "FedProto": "#E08A00",
    "Ditto": "#CC5FA0",
    "FedALA": "#3AA0D8",
    "FedProx": "#783030",
    "FedTGP": "#0000F0",
    "FedGH": "#304800",
    "FedHKD": "#90A800",
    "MOON": "#483060",
    "FedCP": "#F030F0",
    "GPFL": "#0030A8",
    "FedDBE": "#A89048",
    "FedPA": "#900090",
    "FedProc": "#006060",
    "FedCRL": "#D87860",
    "FedKTL": "#00A800",
    "FedCPD+": "#FF7F6E",
}
OF_OTHERS = ("#9048F0", "#784800", "#F00090", "#900048", "#307800", "#D4501E", "#5B6C8F")  # chosen by the name
MARKERS = {"": "", "o": "● ", "s": "■ ", "^": "▲ ", "D": "◆ ", "v": "▼ ", "P": "✚ ", "X": "✖ "}  # and in front of names

SUFFIXES = (".png", ".pdf", ".svg")
FONTS: Any = {"pdf.fonttype": 42, "svg.hashsalt": "flcore", "font.size": 9.5}  # as journals want; the same file again

LOGARITHMIC = 5  # where the largest cost is more than so many times the smallest
AFTER = (0, (3, 1.5))  # dashes of evaluation point B


def colour_of(algorithm: str) -> str:
    """The method's colour, the same in every figure; of an unknown one, chosen by its name."""
    return COLOURS.get(algorithm) or OF_OTHERS[zlib.crc32(algorithm.encode()) % len(OF_OTHERS)]


class Line(NamedTuple):
    """One group of runs as it is drawn. The marker also stands before its name, beside its curve."""

    name: str
    colour: str
    marker: str
    runs: pd.Index  # the numbers of its runs
    rounds: pd.DataFrame  # of all of them


class Curve(NamedTuple):
    """Mean and standard deviation over seeds along x; the latter is NaN for one seed."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


def lines_of(results: Results, dataset: str) -> Iterator[Line]:
    """The groups of one data set, in their order."""
    names = results.runs.groupby("algorithm")["label"].unique()
    for _, runs in results.runs[results.runs["dataset"] == dataset].groupby("group"):
        first = runs.iloc[0]
        marker = list(MARKERS)[list(names[first["algorithm"]]).index(first["label"]) % len(MARKERS)]
        name = first["label"] + marks(runs)
        yield Line(name, colour_of(first["algorithm"]), marker, runs.index, results.rounds_of_group(first["group"]))


def curve_of(rounds: pd.DataFrame, metric: str, scale: float = 1.0, along: str = "round") -> Curve:
    """`metric` over the rounds, or over the mean of another column in them."""
    each = rounds.dropna(subset=[metric]).groupby("round")
    mean, spread = each[metric].mean() * scale, each[metric].std(ddof=1) * scale
    x = mean.index.to_series() if along == "round" else each[along].mean()
    usable = x.notna() & (mean.abs() < 1e6)  # of a file from elsewhere: nothing that could be seen
    return Curve(*(np.asarray(values[usable], dtype=np.float64) for values in (x, mean, spread)))


# ---------------------------------------------------------------------------------------------- panels


def _figure(results: Results, height: float = 4.2) -> tuple[Any, list[tuple[str, Any]]]:
    """An empty figure with a panel for each data set, at most three side by side."""
    datasets = list(dict.fromkeys(results.runs["dataset"]))
    columns = min(len(datasets), 3)
    rows = -(-len(datasets) // columns)
    figure = Figure(figsize=(6.4 * columns if columns < 3 else 5.6 * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in panels[len(datasets) :]:
        unused.remove()
    for panel, dataset in zip(panels, datasets, strict=False):
        panel.set_title(dataset, loc="left", fontweight="bold", parse_math=False)
        panel.grid(axis="y", color="#dddddd", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(zip(datasets, panels, strict=False))


def _draw(panel: Any, curve: Curve, line: Line, style: Any = "-", width: float = 1.9) -> None:
    """A line, with a band of a standard deviation to both sides where there are several seeds."""
    style = {"color": line.colour, "linestyle": style, "linewidth": width, "marker": line.marker, "markersize": 4}
    panel.plot(curve.x, curve.mean, markevery=0.1 if len(curve.x) > 10 else 1, **style)
    if len(curve.x) == 1 and not line.marker:
        panel.plot(curve.x, curve.mean, "o", color=line.colour, markersize=4)  # a line through one point is none
    if np.isfinite(curve.spread).any():
        low, high = curve.mean - curve.spread, curve.mean + curve.spread
        panel.fill_between(curve.x, low, high, color=line.colour, alpha=0.15, linewidth=0)


def _end(line: Line, curve: Curve, more: str = "") -> End:
    return End(curve.x[-1], curve.mean[-1], MARKERS[line.marker] + line.name + more, line.colour)


def _end_at(panel: Any, curves: Sequence[Curve]) -> None:
    """Ends the axis of x where the curves end."""
    first, last = min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves)
    panel.set_xlim(first, last if last > first else first + 1)


def _percent(panel: Any) -> None:
    """Keeps the axis of a percentage within 0 and 100, unless there is something outside."""
    low, high = panel.get_ylim()
    seen = panel.dataLim
    panel.set_ylim(max(low, 0) if seen.y0 >= 0 else low, min(high, 100) if seen.y1 <= 100 else high)


def _curves(results: Results, what: Sequence[tuple[str, Any, float]], label: str) -> Any:
    """A panel for each data set with the curves of all groups; the first array of `what` bears the names."""
    figure, panels = _figure(results)
    named, drawn = [], []
    for dataset, panel in panels:
        ends, curves = [], []
        for line in lines_of(results, dataset):
            for number, (metric, style, width) in enumerate(what):
                curve = curve_of(line.rounds, metric, 100)
                if not len(curve.x):
                    continue
                _draw(panel, curve, line, style, width)
                curves.append(curve)
                if number == 0:
                    ends.append(_end(line, curve))
        if curves:
            _end_at(panel, curves)
        panel.set_xlabel("round")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        named.append((panel, ends))
        drawn += curves
    _needs(drawn, label)
    panels[0][1].set_ylabel(label)
    return figure, named


def _needs(drawn: Sequence[Any], what: str) -> None:
    if not len(drawn):
        raise UsageError(f"none of these results tells the {what}")


def _finished(figure: Any, named: Sequence[tuple[Any, Sequence[End]]]) -> Any:
    settle(figure, [(panel, label_ends(panel, ends)) for panel, ends in named])
    return figure


def curves(results: Results) -> Any:
    """Accuracy over the rounds, after the download (A, solid) and after training (B, dashed)."""
    points = (("test_acc", "-", 1.9), ("test_acc_after", AFTER, 1.2))
    figure, named = _curves(results, points, "test accuracy (%)")
    for panel, _ in named:
        _percent(panel)
    keys = [
        Line2D([], [], color="#444444", linewidth=1.9, label="A: after download"),
        Line2D([], [], color="#444444", linewidth=1.2, linestyle=AFTER, label="B: after local training"),
    ]
    if results.runs["group"].duplicated().any():
        keys.append(Line2D([], [], color="#444444", alpha=0.2, linewidth=6, label="band: ± std over seeds"))
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False, fontsize="small", columnspacing=1.2)
    return _finished(figure, named)


def forgetting(results: Results) -> Any:
    """What each download takes away: B of the round before minus A."""
    figure, named = _curves(results, (("forgetting", "-", 1.6),), "forgetting (points)")
    for panel, _ in named:
        panel.axhline(0, color="#444444", linewidth=0.8, zorder=1)
    return _finished(figure, named)


def _against(results: Results, along: str, scale: float, label: str, nothing: str) -> Any:
    """A over what the rounds before had cost; logarithmic where the methods' costs are far apart.

    A method without that cost is a horizontal line at its last accuracy.
    """
    figure, panels = _figure(results)
    named, costs = [], []
    for dataset, panel in panels:
        found = []
        for line in lines_of(results, dataset):
            curve = curve_of(line.rounds, "test_acc", 100, along)
            if len(curve.x):
                found.append((line, curve._replace(x=curve.x * scale)))
        last = [curve.x[-1] for _, curve in found if curve.x[-1] > 0]
        logarithmic = bool(last) and max(last) > LOGARITHMIC * min(last)
        ends, shown = [], []
        for line, curve in found:
            if not curve.x[-1] > 0:
                panel.axhline(curve.mean[-1], color=line.colour, linewidth=1.2, linestyle="-.")
                ends.append(_end(line, curve, f" (no {nothing})")._replace(x=max(last, default=1.0)))
                continue
            if logarithmic:
                curve = Curve(*(values[curve.x > 0] for values in curve))
            _draw(panel, curve, line)
            shown.append(curve)
            ends.append(_end(line, curve))
        if logarithmic:
            panel.set_xscale("log")
        if shown:
            _end_at(panel, shown)
        panel.set_xlabel(label)
        _percent(panel)
        named.append((panel, ends))
        costs += shown
    _needs(costs, label)
    panels[0][1].set_ylabel("test accuracy, A (%)")
    return _finished(figure, named)


def traffic(results: Results) -> Any:
    """A over the megabytes that all clients had received and sent."""
    return _against(results, "bytes_before", 1e-6, "traffic of all clients so far (MB)", "traffic")


def seconds(results: Results) -> Any:
    """A over the seconds that the rounds had taken, on the machine where each run ran."""
    return _against(results, "seconds_before", 1.0, "time so far (s)", "time")


def clients(results: Results) -> Any:
    """The last A of every client, the mean over seeds: a dot each, with the clients' mean and quartiles."""
    tallest = max(results.runs.groupby("dataset")["group"].nunique())
    figure, panels = _figure(results, height=max(2.2, 0.34 * tallest + 1.0))
    some = []
    for dataset, panel in panels:
        rows = []
        for line in lines_of(results, dataset):
            last = 100 * results.last_of_clients(line.runs)
            if np.isfinite(last).any():
                rows.append((line, last[np.isfinite(last)]))
        rows.sort(key=lambda row: row[1].mean())
        for height, (line, values) in enumerate(rows):
            low, high = np.quantile(values, [0.25, 0.75])
            panel.plot([low, high], [height, height], color=line.colour, linewidth=9, alpha=0.18, solid_capstyle="butt")
            panel.plot(values, np.full(len(values), height), "o", color=line.colour, markersize=4.5, alpha=0.55, mew=0)
            panel.plot([values.mean()], [height], "|", color=line.colour, markersize=15, mew=2.2)
        panel.set_yticks(range(len(rows)), [line.name for line, _ in rows], parse_math=False)
        for tick, (line, _) in zip(panel.get_yticklabels(), rows, strict=True):
            tick.set_color(line.colour)
        panel.set_ylim(-0.6, max(len(rows), 1) - 0.4)
        panel.grid(axis="x", color="#dddddd", linewidth=0.7)
        panel.grid(axis="y", visible=False)
        panel.set_xlabel("last accuracy of each client, A (%); | mean, bar: middle half of the clients")
        some += rows
    _needs(some, "accuracy of each client")
    return _finished(figure, [])


def partition(results: Results) -> Any:
    """Which client held how many images of which class, from the data set that the runs used, if it is still there."""
    found = {}
    for dataset in dict.fromkeys(results.runs["dataset"]):
        number = results.runs.index[results.runs["dataset"] == dataset][0]
        info = results.files[number].info
        arguments, settings = info.get("arguments"), info.get("settings")
        place = arguments.get("data_dir") if isinstance(arguments, dict) else None
        if not isinstance(place, str) or not isinstance(settings, dict):
            raise UsageError(f"{results.files[number].path}: no run.json beside it tells where its data set lies")
        data = DataSet(dataset, place)
        counts = plot.read_counts(data)
        if settings.get("data_digest") not in (None, data.digest()):
            raise UsageError(f"the data set in {data.folder} is no longer the one that these results were made with")
        found[dataset] = counts, data.class_names()
    sizes = [plot.size_of(counts) for counts, _ in found.values()]
    figure = Figure(
        figsize=(sum(width + 1.6 for width, _ in sizes), max(height for _, height in sizes) + 1.0), layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(found), squeeze=False, width_ratios=[width for width, _ in sizes])[0]
    for panel, (dataset, (counts, class_names)) in zip(panels, found.items(), strict=True):
        plot.draw_panel(panel, counts, dataset, class_names)
    return figure


FIGURES: dict[str, Callable[[Results], Any]] = {
    "curves": curves,
    "clients": clients,
    "forgetting": forgetting,
    "traffic": traffic,
    "seconds": seconds,
    "partition": partition,
}


# ---------------------------------------------------------------------------------------------- files


def check_suffix(path: Path) -> Path:
    """`path`, if a figure can be written there.

    Raises:
        UsageError: its suffix is none of .png, .pdf, .svg.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--out {path}: a figure is written as {', '.join(SUFFIXES)}, which its name's end says")
    return path


def write(results: Results, name: str, path: Path) -> None:
    """Draws a figure of `FIGURES` and writes it in the format that the path's suffix names."""
    kind = check_suffix(path).suffix.lower()[1:]
    nothing = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
    with matplotlib.rc_context(FONTS):
        figure = FIGURES[name](results)
        with whole_file(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=160, metadata=nothing)
