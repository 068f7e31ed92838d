"""Reads arrays (.npz, .npy) and tables (CSV, Parquet) of samples."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flcore.data.samples import Array, Samples, as_pixels, labelled, numbered
from flcore.utils.errors import UsageError, did_you_mean
from flcore.utils.safe_load import load_npy, load_npz

if TYPE_CHECKING:
    import pandas as pd

TABLES = {".csv", ".tsv", ".parquet"}


def read_npz(path: Path, label_column: str | None = None, user_column: str | None = None) -> Samples:
    """An .npz with images or vectors x and labels y (or the array named by `label_column`), and maybe users.

    x_train, y_train, x_test and y_test, as Keras writes them, are merged.
    """
    content, label = load_npz(path), label_column or "y"
    if {"x_train", "y_train", "x_test", "y_test"} <= set(content):
        parts = {name: [content[f"{name}_train"], content[f"{name}_test"]] for name in ("x", "y")}
        for name, (train, test) in parts.items():
            if train.shape[1:] != test.shape[1:]:
                raise UsageError(f"{path}: {name}_train is {train.shape}, {name}_test {test.shape}: of another shape")
            content[name] = np.concatenate([train, test])
    _needs(path, content, "x", label, *([user_column] if user_column else []))
    return _from_arrays(path, content["x"], content[label], content[user_column] if user_column else None, label)


def read_npy(path: Path) -> Samples:
    """x.npy with y.npy beside it, and users.npy if it is there."""
    files = {name: path.with_name(f"{name}.npy") for name in ("x", "y", "users")}
    if not files["y"].is_file():
        raise UsageError(f"{path} needs its labels beside it, in {files['y']}")
    users = load_npy(files["users"]) if files["users"].is_file() else None
    return _from_arrays(path, load_npy(path), load_npy(files["y"]), users, "y")


def read_table(path: Path, label_column: str | None = None, user_column: str | None = None) -> Samples:
    """A CSV (or TSV) or Parquet file with one sample a row: a column of labels, maybe one of users, all others numbers.

    Raises:
        UsageError: a column is missing, or holds something else; the message names column and row.
    """
    table = _load(path)
    columns = list(map(str, table.columns))
    table.columns = columns
    if len(set(columns)) < len(columns):
        raise UsageError(f"{path} has several columns named {next(c for c in columns if columns.count(c) > 1)!r}")
    label = label_column or next((name for name in ("label", "y") if name in columns), None)
    if label is None:
        raise UsageError(f"{path}: which column is the label? --label_column NAME, one of {_listed(columns)}")
    _needs(path, columns, label, *([user_column] if user_column else []))
    numbers = table.drop(columns=[label, *([user_column] if user_column else [])])
    first = numbers.columns[0] if len(numbers.columns) else ""
    counted = first.startswith("Unnamed: ") and list(numbers[first]) == list(range(len(numbers)))
    if counted:  # as pandas writes a table
        numbers = numbers.drop(columns=first)
    for name in numbers.columns:
        if numbers[name].dtype.kind not in "biuf":
            wrong = numbers[name][~numbers[name].map(_is_number)]
            shown = f" ({wrong.iloc[0]!r} in row {_row(path, wrong.index[0])})" if len(wrong) else ""
            raise UsageError(
                f"{path}: column {name!r} holds other than numbers{shown}; make numbers of it, or leave it out"
            )
    x = numbers.to_numpy(np.float64, na_value=np.nan)
    if not x.shape[1]:
        raise UsageError(f"{path} has no column beside {label!r}: there is nothing to learn from")
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        row, column = bad[0]
        raise UsageError(
            f"{path}: column {numbers.columns[column]!r} has no number in row {_row(path, row)}, nor have "
            f"{len(bad) - 1} other places; fill or remove them first"
        )
    if not len(x):
        raise UsageError(f"{path} holds no samples")
    users = table[user_column].to_numpy() if user_column else None
    read = _from_arrays(path, x.astype(np.float32), table[label].to_numpy(), users, f"column {label!r}")
    return replace(read, notes=("the first column numbers the rows and is left out",) * counted)


def _from_arrays(path: Path, x: Array, labels: Array, users: Array | None, what: str) -> Samples:
    x = as_pixels(x, path)
    y, class_names = labelled(labels, len(x), path, what)
    if users is None:
        return Samples(x, y, class_names)
    if users.shape != (len(x),):
        raise UsageError(f"{path}: {len(x)} samples need as many users, they have the shape {users.shape}")
    written = list(map(str, users.tolist()))
    if missing := [index for index, user in enumerate(written) if user in ("", "nan", "None", "NaT")]:
        raise UsageError(f"{path}: sample {missing[0]} has no user")
    names = numbered(written)
    place = {name: number for number, name in enumerate(names)}
    return Samples(x, y, class_names, np.array([place[user] for user in written], np.int64), tuple(names))


def _load(path: Path) -> "pd.DataFrame":
    import pandas as pd

    try:
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path)
        with open(path, encoding="utf-8-sig") as file:
            header = file.readline(10**6)
        return pd.read_csv(path, sep=max(",;\t", key=header.count), encoding="utf-8-sig")
    except ImportError:
        raise UsageError(f"{path}: Parquet files need the package pyarrow: pip install pyarrow") from None
    except Exception as error:  # a damaged file can make any operation fail in any way
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"{path} is no table that can be read: {reason}") from None


def _needs(path: Path, there: Iterable[str], *names: str) -> None:
    there = list(there)
    for name in names:
        if name not in there:
            raise UsageError(
                f"{path} has no {name}, it holds {_listed(there) or 'nothing'}." + did_you_mean(name, there)
            )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:20]) + ", ..." * (len(names) > 20)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


def _row(path: Path, index: int) -> int:
    """The row as a reader counts it: the line of a text file below its header, or from 1 on."""
    return int(index) + (1 if path.suffix.lower() == ".parquet" else 2)
