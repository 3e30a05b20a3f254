"""The command line: python -m bench.costs."""

from superopt.bench.costs.command import main

if __name__ == "__main__":
    raise SystemExit(main())
