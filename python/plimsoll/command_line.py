"""The program `plimsoll` of the wheel: Plimsoll's command line, and scripts whose step is planned.

PyTorch is imported only for scripts.
"""

from __future__ import annotations

import signal
import sys

from . import _core


def main() -> int:
    """Runs the command line of this process, and returns the exit code."""
    line = ["plimsoll", *sys.argv[1:]]
    script = _core.script(line)
    if script is None:
        # Python's handler only sets a flag, which is not checked meanwhile: Ctrl-C ends the process, or the command handles
        # it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return _core.run_program(line)
    from . import scripts

    return scripts.run(script)
