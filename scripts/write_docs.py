"""Rewrites docs/algorithms.md from the registry and the methods' settings."""

from flcore import registry
from flcore.utils.cli.parser import method_settings
from flcore.utils.paths import REPO
from flcore.utils.runs.files import write_text

TEXT = """# Algorithms

Written by `python scripts/write_docs.py` from the registry; `python main.py --list` prints the same
table.

Every method is scored at point A (after the download, before training; the headline) and at point B
(after local training). `-ls` (local epochs), `-lbs` (batch size) and `-lr` (learning rate) hold for
all. Where a paper and its released code differ, the top of `system/flcore/clients/client<x>.py`
says what is built here.

"""
SETTINGS = """
## Settings

They are declared beside the rule, in `system/flcore/clients/client<x>.py`, and
`python main.py -algo NAME --help` shows those of one method. Methods that upload class prototypes
also heed `--proto_min_count`, `--proto_noise`, `--proto_clip` and `--dp_delta`
([privacy](privacy.md)).
"""


def settings_table(method: registry.Method) -> str:
    """A method's settings as a Markdown table; empty if it has none."""
    rows = [
        f"| {', '.join(f'`{spelling}`' for spelling in one.spellings)} "
        f"| {'-' if one.default is None else one.default} | {one.allowed() or '-'} | {one.help} | {one.source or '-'} |"
        for one in method_settings(method).values()
    ]
    head = ["| flag | default | allowed | meaning | source of the default |", "|---|---|---|---|---|"]
    return "\n".join([f"\n### {method.name}\n", *head, *rows, ""]) if rows else ""


def page() -> str:
    """The whole of docs/algorithms.md."""
    return TEXT + registry.table() + "\n" + SETTINGS + "".join(map(settings_table, registry.METHODS))


if __name__ == "__main__":
    write_text(REPO / "docs" / "algorithms.md", page())
