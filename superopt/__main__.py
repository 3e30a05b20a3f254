"""`superopt` and `python -m superopt`: the command line, in a process of its own."""

import gc
import signal
import sys

__all__ = ["main"]

_YOUNG = 50_000  # objects made before garbage is looked for: modules alone make hundreds of thousands


def main() -> int:
    """Run the command line.

    Python looks for garbage as modules are read, and once more at the very end, among all that it goes
    on to throw away: a quarter of the time of a short command.
    """
    gc.set_threshold(_YOUNG)
    try:
        from superopt.cli import main as run

        code = run()
    except KeyboardInterrupt:  # while modules were imported, or right at the end
        print("superopt: interrupted", file=sys.stderr)
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(main())
