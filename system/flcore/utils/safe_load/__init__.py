"""Reads numpy's files, plain pickles and JSON without ever running what a stranger put inside.

A pickle is a program. PFLlib's partition files and the CIFAR batches are pickles all the same, so they are read by an
unpickler that knows only a handful of names (for numpy's arrays, dtypes and scalars, and for bytes), each replaced by a
checked stand-in; any other name ends the reading. What comes out is arrays, numbers, strings, bytes, dicts, lists and
tuples.

Memory and time are bounded by the size of the file, whatever it says of itself: a packed file may unpack to
`most_unpacked`, and a pickle may not make more of its bytes by using them again and again.
"""

from flcore.utils.safe_load.bounds import most_unpacked
from flcore.utils.safe_load.files import load_json, load_npy, load_npz, load_pickle

__all__ = ["load_json", "load_npy", "load_npz", "load_pickle", "most_unpacked"]
