"""The Markdown files: their form, and that what they name is there."""

import re

import pytest

from flcore.data.generate import Recipe
from flcore.registry import METHODS
from flcore.utils.cli.parser import make_parser
from support import REPO

DOCUMENTS = sorted(
    [*REPO.glob("*.md"), *(file for top in ("docs", "examples", "experiments") for file in (REPO / top).rglob("*.md"))]
)
PLACES = ("system", "dataset", "scripts", "tests", "examples", "experiments")
SOURCES = [file for top in PLACES for file in (REPO / top).rglob("*.*")]
FOLDERS = (".", "system", "system/flcore", "dataset", "scripts", "tests", "docs")  # where a path may begin
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))


def lines(path, code):
    """(number, line) of the lines in fenced and indented code, or of all others."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if (fenced or line.startswith("    ")) is code and not fence:
            yield number, line


def spans(path):
    """What stands in backticks, in text."""
    text = "\n".join(line for _, line in lines(path, code=False))
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def commands(path):
    """(script, its words) of every `python SCRIPT ...`."""
    text = [*(line for _, line in lines(path, code=True)), *spans(path)]
    for line in text:
        for command in re.split(r"&&|;|\|| # ", line):
            if found := re.search(r"\bpython(?: -m)? (\S+\.py)(.*)", command):
                yield found[1], found[2].split()


def is_there(name, document):
    """Whether there is a file or folder of that name; <x>, <Name> and a capital X stand for anything."""
    pattern = re.sub(r"<\w+>|X(?=\.py$)", "*", name.removeprefix("../"))
    if "/" not in pattern:
        return any(file.match(pattern) for file in [*SOURCES, *DOCUMENTS]) or any(REPO.glob(pattern))
    return any(any((top / folder).glob(pattern)) for top in (REPO, document.parent) for folder in FOLDERS)


@each_document
def test_prose_is_at_most_100_columns_wide(path):
    """Tables may be wider, and a word that is."""
    wide = [(number, line) for number, line in lines(path, code=False) if len(line) > 100 and line.lstrip()[0] != "|"]
    assert not [(number, line) for number, line in wide if " " in line.strip()]


@each_document
def test_named_files_and_folders_are_there(path):
    names = {span for span in spans(path) if re.fullmatch(r"[\w./<>-]+(\.(py|sh|md|toml|cff)|/)", span)}
    names |= {script for script, _ in commands(path)}
    names -= {"results/", "../results/", "system/flcore/imported/<method>/"}  # made by a run, or an import
    example = {
        "system/flcore/clients/clientrepprox.py",
        "system/flcore/servers/serverrepprox.py",
    }  # a reader makes them
    assert not [name for name in sorted(names - example) if not is_there(name, path)]
    links = re.findall(r"\]\(((?!https?:|#)[^)#]+)", path.read_text(encoding="utf-8"))
    assert not [link for link in links if not (path.parent / link).exists()]


@each_document
def test_flags_of_commands_are_known(path):
    known = {"-m", "-k"}  # pytest's
    known |= set(make_parser(METHODS[0], METHODS, {}, all=True)._option_string_actions)
    known |= {spelling for one in Recipe.declared().values() for spelling in one.spellings}
    known |= {
        flag for file in SOURCES if file.suffix == ".py" for flag in re.findall(r'"(--?[\w-]+)"', file.read_text())
    }
    flags = {word.split("=")[0] for _, words in commands(path) for word in words if re.match(r"--?[a-z]", word)}
    assert flags <= known
