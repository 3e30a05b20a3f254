"""`superopt` and `python -m superopt`: the command line, in a process of its own."""

import gc
import os
import signal
import sys
from types import FrameType

__all__ = ["main"]

_YOUNG = 50_000  # objects made before garbage is looked for: modules alone make hundreds of thousands


def main() -> int:
    """Run the command line.

    Python looks for garbage as modules are read, and once more at the very end, among all that it goes
    on to throw away: a quarter of the time of a short command.
    """
    gc.set_threshold(_YOUNG)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from superopt.cli import main as run

    try:
        if signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except KeyboardInterrupt:  # right at the beginning or the end
        print("superopt: interrupted", file=sys.stderr)
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said
    gc.freeze()
    return code


def _end(number: int, frame: FrameType | None) -> None:
    """End here and now: an exception may be lost in a module, or make Python end itself by the signal."""
    os.write(2, b"superopt: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
