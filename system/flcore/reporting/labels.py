"""Names of curves at their right ends, which never cover each other."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import isotonic_regression

GAP = 1.5  # pixels between two names


class End(NamedTuple):
    """Where a curve ends, in the panel's own numbers, and what to write there."""

    x: float
    y: float
    name: str
    colour: str


def spread_out(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> NDArray[np.float64]:
    """The centres nearest to `wanted` (ascending) at which boxes of these sizes lie apart, between `low` and `high`.

    Nearest by the sum of squares. Where the boxes need more room than there is, they end above `high`.
    """
    heights = np.asarray(sizes, dtype=np.float64)
    offsets = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2)])
    first = low + heights[0] / 2
    last = max(first, high - heights[-1] / 2 - offsets[-1])
    return np.asarray(isotonic_regression(np.asarray(wanted) - offsets, y_min=first, y_max=last) + offsets)


def label_ends(panel: Any, ends: Sequence[End]) -> list[Any]:
    """Writes the names to the right of a panel, and returns their texts; `settle` puts them where they belong."""
    texts = []
    for end in sorted(ends, key=lambda end: end.y):
        text = panel.text(
            *(1.0, end.y, end.name),
            **{"color": end.colour, "fontsize": 9, "va": "center", "ha": "left", "parse_math": False},
            transform=panel.get_yaxis_transform(),
        )
        text.end = end
        texts.append(text)
    return texts


def settle(figure: Any, panels: Sequence[tuple[Any, Sequence[Any]]]) -> None:
    """Makes room for the names of every panel, moves them apart, and joins each with the end of its curve.

    The figure grows where the names need more height than their panel has.
    """
    renderer = figure.canvas.get_renderer()
    figure.draw_without_rendering()
    for panel, texts in panels:
        needed = sum(text.get_window_extent(renderer).height + GAP for text in texts)
        if (lacking := needed - panel.bbox.height) > 0:
            figure.set_figheight(figure.get_figheight() + 1.02 * lacking / figure.dpi)
            figure.draw_without_rendering()
    indent = 0.012  # of the panel's width, for the line from the curve to its name
    for text in (text for _, texts in panels for text in texts):
        text.set_x(1.0 + 3 * indent)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # from here on nothing moves
    for panel, texts in panels:
        if not texts:
            continue
        to_pixels, from_pixels = panel.transData, panel.transAxes.inverted()
        wanted = [to_pixels.transform((0, text.end.y))[1] for text in texts]
        sizes = [text.get_window_extent(renderer).height + GAP for text in texts]
        centres = spread_out(wanted, sizes, panel.bbox.y0, panel.bbox.y1)
        for text, centre in zip(texts, centres, strict=True):
            y = from_pixels.transform((0, centre))[1]
            text.set_transform(panel.transAxes)
            text.set_y(y)
            end_x, end_y = from_pixels.transform(to_pixels.transform((text.end.x, text.end.y)))
            early = end_x < 0.999  # before the axis ends
            panel.plot(
                *([end_x, 1.0 + indent, 1.0 + 2.6 * indent], [end_y, y if early else end_y, y]),
                transform=panel.transAxes,
                color=text.end.colour,
                linewidth=0.6,
                linestyle=":" if early else "-",
                clip_on=False,
                in_layout=False,
                zorder=1,
            )
