"""The command line: python -m bench.models."""

from superopt.bench.models.command import main

if __name__ == "__main__":
    raise SystemExit(main())
