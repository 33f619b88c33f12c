"""The program `plimsoll` of the wheel: the house's command line, and scripts whose step is planned.

Only a script needs PyTorch; nothing else imports it.
"""

from __future__ import annotations

import signal
import sys

from . import _core


def main() -> int:
    """Runs the command line of this process, and gives the exit code."""
    line = ["plimsoll", *sys.argv[1:]]
    script = _core.script(line)
    if script is None:
        # Python's handler only leaves a mark, which nobody looks at meanwhile: Ctrl-C ends the process, or is the command's.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return _core.run_program(line)
    from . import scripts

    return scripts.run(script)
