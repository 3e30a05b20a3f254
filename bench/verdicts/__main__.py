"""The command line: python -m bench.verdicts."""

from superopt.bench.verdicts.command import main

if __name__ == "__main__":
    raise SystemExit(main())
