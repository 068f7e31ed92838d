"""Pickles of plain content. Python's unpickler finds only the names in NAMES, and reads only what has been checked.

Before it runs, every instruction is looked at (`check`), since the unpickler would believe what a pickle says of
itself: how long a string is, where to note a value, and that a key of a dict is quick to hash.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from flcore.utils.safe_load.bounds import RefusedError, allow
from flcore.utils.safe_load.stand_ins import NAMES

PLAIN = (str, bytes, bool, int, float, type(None), np.generic)
REFUSED = {
    **dict.fromkeys(("EMPTY_SET", "ADDITEMS", "FROZENSET"), "something of type set"),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), "it asks for a registered extension"),
    **dict.fromkeys(("PERSID", "BINPERSID"), "it asks for a persistent object"),
}
EFFECTS = {  # what an instruction takes from the stack and puts there, as names of types
    opcode.name: ([kind.name for kind in opcode.stack_before], [kind.name for kind in opcode.stack_after])
    for opcode in pickletools.opcodes
}
KEYS = {"str", "bytes", "bytes_or_str"}  # the types that a key of a dict may have
BYTES_MAKERS = {"_codecs encode", "__builtin__ bytes"}  # how Python 3 writes bytes with the old protocols

_UNFINISHED = object()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        try:
            return NAMES[module, name]
        except KeyError:
            raise RefusedError(f"it asks for {module[:80]}.{name[:80]}") from None


def unpickle(content: bytes, encoding: str = "ASCII") -> object:
    """The plain content of a pickle; `encoding` of Python 2's strings, "bytes" for bytes.

    Raises:
        RefusedError: it holds something else.
        ValueError: it is damaged.
    """
    allow(2 * len(content))  # twice: text that becomes bytes, which become an array (Python 3, protocol 2)
    try:
        check(content)
        return _plain(_Unpickler(io.BytesIO(content), encoding=encoding).load(), {})
    except (RefusedError, MemoryError, EOFError):
        raise
    except Exception as error:
        raise ValueError(f"it is not a complete pickle ({error})") from None


def check(content: bytes) -> None:
    """Follows a pickle's instructions with the types of its values alone, and refuses what would do harm.

    No instruction may reserve memory beyond the file's size: `genops` compares announced lengths with what is left,
    and the indices of the memo are bounded here. Keys of dicts are text or bytes, since tuples of tuples take for ever
    to hash, and so do a million numbers made to collide.
    """
    stack: list[str] = []
    marks: list[int] = []  # heights of the stack
    memo: dict[int, str] = {}

    def take(count: int) -> list[str]:
        """The topmost values, none of them below the last mark."""
        height = len(stack) - count
        if height < (marks[-1] if marks else 0):
            raise ValueError("an instruction takes more values than there are")
        taken = stack[height:]
        del stack[height:]
        return taken

    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in REFUSED:
            raise RefusedError(REFUSED[name])
        if name == "MARK":
            marks.append(len(stack))
        elif name == "POP" and marks and marks[-1] == len(stack):
            marks.pop()
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            index = len(memo) if name == "MEMOIZE" else argument
            if not 0 <= index <= len(content):  # the unpickler reserves the memo up to this index
                raise RefusedError(f"a memo index of {index}")
            [memo[index]] = take(1)
            stack.append(memo[index])
        elif name == "DUP":
            stack += take(1) * 2
        elif name == "BUILD":  # the value stays what it is
            stack.append(take(2)[0])
        elif name == "GLOBAL":
            stack.append(argument if argument in BYTES_MAKERS else "any")
        elif name == "REDUCE":
            stack.append("bytes" if take(2)[0] in BYTES_MAKERS else "any")
        else:
            before, after = EFFECTS[name]
            if "mark" in before:
                taken = take(len(stack) - marks[-1])
                marks.pop()
                take(before.index("mark"))
            else:
                taken = take(len(before))
            if name in ("SETITEM", "SETITEMS", "DICT"):
                _check_keys(taken[1:2] if name == "SETITEM" else taken[::2])  # SETITEM takes the dict too
            stack += after


def _check_keys(kinds: list[str]) -> None:
    for kind in kinds:
        if kind not in KEYS:
            raise RefusedError(f"a dict with a key of type {kind}")


def _plain(value: object, done: dict[int, object]) -> object:
    """A copy of `value` with numpy's own arrays; raises on anything but plain content. `done` maps id to copy."""
    if isinstance(value, PLAIN):
        return value
    if id(value) in done:
        if done[id(value)] is _UNFINISHED:
            raise RefusedError("something that contains itself")
        return done[id(value)]
    done[id(value)] = _UNFINISHED
    plain: Any
    if isinstance(value, np.ndarray):
        plain = value.view(np.ndarray)
        if plain.dtype.hasobject:
            flat = np.empty(value.size, object)
            for index, item in enumerate(plain.ravel()):
                flat[index] = _plain(item, done)
            plain = flat.reshape(value.shape)
    elif type(value) is dict:
        plain = {key: _plain(item, done) for key, item in value.items()}  # text and bytes, see `check`
    elif type(value) is list:
        plain = [_plain(item, done) for item in value]
    elif type(value) is tuple:
        plain = tuple(_plain(item, done) for item in value)
    else:
        raise RefusedError(f"something of type {type(value).__name__}")
    done[id(value)] = plain
    return plain
