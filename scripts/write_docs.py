"""Rewrites docs/algorithms.md from the registry."""

from flcore.utils.paths import REPO

TEXT = """# Algorithms

Written by `python scripts/write_docs.py` from the registry; `python main.py --list` prints the same table.

Every method is scored at point A (after the download, before training; the headline) and at point B (after local
training). `-ls` local epochs, `-lbs` batch size, `-lr` learning rate hold for all. What is built where a paper and
its released code differ stands at the top of `system/flcore/clients/client<x>.py`.

"""


def main() -> None:
    from flcore.registry import table

    (REPO / "docs" / "algorithms.md").write_text(TEXT + table() + "\n")


if __name__ == "__main__":
    main()
