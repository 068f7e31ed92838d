"""What must never run when a file is read."""

import os


class Evil:
    """Runs a command when unpickled: it would create the file `flag`."""

    def __init__(self, flag):
        self.flag = str(flag)

    def __reduce__(self):
        return os.mkdir, (self.flag,)
