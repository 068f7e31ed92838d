"""What a terminal can show."""

import codecs
import sys

# What stands in for a sign that the terminal's character set lacks; any other becomes a question mark.
PLAIN = {"–": "-", "—": "-", "−": "-", "±": "+-", "…": "...", "†": "+", "‡": "++", "×": "x", "µ": "u", "’": "'"}
PLAIN |= {"“": '"', "”": '"', "→": "->", "│": "|", "█": "#", "▏": "|"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error("plain", _plain)


def replace_missing_signs() -> None:
    """Makes standard output and standard error write plain signs for those that their character set lacks, where they
    would end the program otherwise."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not so where a notebook or a test has put its own in place
            stream.reconfigure(errors="plain")
