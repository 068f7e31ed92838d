"""The command line: flags, their checks, --help, and what they mean for a method."""

from flcore.utils.cli.config import read_config, read_toml
from flcore.utils.cli.device import resolve_device
from flcore.utils.cli.read import Arguments, chosen_in, read, settle

__all__ = ["Arguments", "chosen_in", "read", "read_config", "read_toml", "resolve_device", "settle"]
