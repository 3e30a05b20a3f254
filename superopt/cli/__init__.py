"""The command line: `superopt search | verify | rules | list | doctor`, one module for each command."""

from superopt.cli.entry import main

__all__ = ["main"]
