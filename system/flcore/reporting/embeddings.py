"""A figure of embeddings in the plane (t-SNE, van der Maaten and Hinton, JMLR 2008), with the classes' prototypes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flcore.reporting.figures import FONTS, check_suffix
from flcore.utils.errors import UsageError
from flcore.utils.runs.files import whole_file

LEAST = 3  # points


def plane(points: NDArray[Any]) -> NDArray[np.float64]:
    """Points (n, K) in the plane (n, 2), always the same for the same ones."""
    from sklearn.manifold import TSNE  # takes its time

    perplexity = min(30.0, (len(points) - 1) / 3)
    return np.asarray(TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points), np.float64)


def write(
    path: Path,
    z: NDArray[Any],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    prototypes: NDArray[Any] | None = None,
) -> None:
    """Draws embeddings z (n, K) as dots in their classes' colours, and prototypes (C, K) as stars, in one plane.

    Args:
        path: .png, .pdf or .svg.
        labels: (n); -1 is drawn grey.
        prototypes: by class; NaN for a class without.

    Raises:
        UsageError: there are too few embeddings, or the suffix is another.
    """
    kind = check_suffix(path).suffix.lower()[1:]
    if len(z) < LEAST:
        raise UsageError(f"{path}: {len(z)} embeddings are too few for a figure, it takes {LEAST}")
    none = np.empty((0, z.shape[1]))
    seen = np.flatnonzero(np.isfinite(prototypes).all(1)) if prototypes is not None else np.empty(0, np.int64)
    places = plane(np.concatenate([z, none if prototypes is None else prototypes[seen]]).astype(np.float32))
    with matplotlib.rc_context(FONTS):
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        FigureCanvasAgg(figure)
        panel = figure.subplots()
        colours = matplotlib.colormaps["tab10" if len(class_names) <= 10 else "gist_ncar"]
        steps = np.arange(len(class_names)) if len(class_names) <= 10 else np.linspace(0, 0.95, len(class_names))
        for label in np.unique(np.concatenate([labels, seen])):
            colour = colours(steps[label]) if label >= 0 else "#bbbbbb"
            own = places[: len(z)][labels == label]
            name = class_names[label] if label >= 0 else "not known"
            panel.scatter(own[:, 0], own[:, 1], s=14, color=[colour], alpha=0.7, linewidths=0, label=name)
            star = places[len(z) :][seen == label]
            panel.scatter(star[:, 0], star[:, 1], s=170, color=[colour], marker="*", edgecolors="black", zorder=3)
        panel.set(xticks=[], yticks=[])
        figure.legend(loc="outside right upper", frameon=False, fontsize="small", ncols=-(-len(class_names) // 25))
        with whole_file(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=160)
