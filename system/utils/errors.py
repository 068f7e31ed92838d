"""The two ways a command may end early. main and the scripts print the message alone and exit with `exit_code`."""


class UsageError(Exception):
    """The user asked for something that cannot be done: a wrong flag, a missing or damaged file."""

    exit_code = 2


class RunError(Exception):
    """The run itself failed, for example because the loss became NaN."""

    exit_code = 1
