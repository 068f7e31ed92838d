"""The command line: flags, their checks, --help, and what they mean for a method."""

from flcore.utils.cli.device import resolve_device
from flcore.utils.cli.read import Arguments, algorithm_in, read, settle

__all__ = ["Arguments", "algorithm_in", "read", "resolve_device", "settle"]
