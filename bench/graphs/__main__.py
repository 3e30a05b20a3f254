"""The command line: python -m bench.graphs FOLDER."""

from superopt.bench.graphs.command import main

if __name__ == "__main__":
    raise SystemExit(main())
