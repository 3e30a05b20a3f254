"""The command line: python -m bench.conv."""

from superopt.bench.conv.command import main

if __name__ == "__main__":
    raise SystemExit(main())
