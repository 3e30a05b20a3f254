"""The command line: python -m bench.races."""

from superopt.bench.races.command import main

if __name__ == "__main__":
    raise SystemExit(main())
