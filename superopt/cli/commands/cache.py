"""`superopt cache`: what earlier runs left, to list, carry to another machine, and clear."""

import argparse
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.cli.screen import Table, Text, print_blocks, print_json
from superopt.errors import InputError

if TYPE_CHECKING:
    from superopt.cache import Entry, Info

__all__ = ["add_command", "parse_age"]

_EPILOG = """\
examples:
  superopt cache list --kind plan
  superopt cache export plans.jsonl         on one machine
  superopt cache import plans.jsonl         on another
  superopt cache clear --older-than 30d

SUPEROPT_CACHE_DIR names the folder. Exit code 1: the cache cannot be used, or (clear) only in part.
"""
_KINDS = ("search", "plan", "measurement", "result", "pending")
_AGE = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def add_command(commands: Any) -> None:
    """Add `superopt cache`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "cache",
        help="list, export, import or clear what is kept from earlier runs",
        description="Searches, plans, measurements and pending work of earlier runs: lists, exports, clears.",
        epilog=_EPILOG,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action")
    listing = _add(actions, "list", _list, "every record, the newest first")
    _add(actions, "info", _info, "where the cache is, how full it is, what is wrong with it")
    exporting = _add(actions, "export", _export, "write all records to a file, as lines of JSON")
    exporting.add_argument("file", metavar="FILE", type=Path, help="the file to write")
    importing = _add(actions, "import", _import, "take over the records of an export, all or none")
    importing.add_argument("file", metavar="FILE", type=Path, help="the file to read")
    clearing = _add(actions, "clear", _clear, "remove records: all, or those of a kind or an age")
    for action in (listing, clearing):
        action.add_argument("--kind", choices=_KINDS, help="only these records")
    clearing.add_argument(
        "--older-than",
        type=parse_age,
        metavar="AGE",
        help="only records not used for so long: 90m, 12h, 30d, 8w",
    )


def parse_age(text: str) -> timedelta:
    """Return the time that `30d` means."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an age; write a number and s, m, h, d or w, as in 30d"
        )
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _add(actions: Any, name: str, run: Any, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    from superopt.cache import Cache

    with Cache.open() as cache:
        entries, info = cache.entries(arguments.kind), cache.info()
    if arguments.json:
        _print_json(info, records=[_entry_json(entry) for entry in entries])
    elif not entries:
        unusable = _code(info) and f"the cache cannot be used: {info.fault}"
        print_blocks([Text(unusable or f"the cache is empty: {_place(info)}")])
    else:
        now = datetime.now(UTC)
        rows = tuple(
            (
                entry.kind,
                entry.digest[:12],
                entry.label or "-",
                str(entry.parts["device"]),
                _age(now - entry.made),
                _age(now - entry.used),
                f"{entry.size_bytes / 1024:.1f}",
            )
            for entry in entries
        )
        print_blocks([Table(("kind", "key", "name", "device", "made", "used", "KiB"), rows)])
    return _code(info)


def _info(arguments: argparse.Namespace) -> int:
    from superopt.cache import Cache

    with Cache.open() as cache:
        info = cache.info()
    if arguments.json:
        _print_json(info)
        return _code(info)
    rows = [
        ("file", _place(info)),
        ("size", f"{info.size_bytes / 2**20:.1f} of {info.limit_bytes / 2**20:.0f} MiB"),
        *((f"{kind} records", str(count)) for kind, count in info.entries.items()),
        ("state", info.fault or "ok"),
    ]
    print_blocks([Table(("what", "found"), tuple(rows))])
    return _code(info)


def _export(arguments: argparse.Namespace) -> int:
    from superopt.cache import Cache

    with Cache.open() as cache:
        if cache.info().path is None or not cache.info().size_bytes:
            raise InputError(f"there is no cache to export: {cache.info().fault}")
        count = cache.export(arguments.file)
        info = cache.info()
    if arguments.json:
        _print_json(info, exported=count, file=str(arguments.file))
    else:
        print_blocks([Text(f"{_records(count)} exported to {arguments.file}")])
    return _code(info)


def _import(arguments: argparse.Namespace) -> int:
    from superopt.cache import Cache

    with Cache.open() as cache:
        count = cache.import_(arguments.file)
        cache.close()
        info = cache.info()
    if info.unsaved:
        raise InputError(f"nothing is imported: {info.fault}")
    if arguments.json:
        _print_json(info, imported=count, file=str(arguments.file))
    else:
        print_blocks([Text(f"{_records(count)} imported, new or newer than those here")])
    return _code(info)


def _clear(arguments: argparse.Namespace) -> int:
    from superopt.cache import Cache

    with Cache.open() as cache:
        count = cache.clear(arguments.kind, arguments.older_than)
        info = cache.info()
    if arguments.json:
        _print_json(info, removed=count)
    else:
        print_blocks([Text(f"{_records(count)} removed")])
    return _code(info)


def _code(info: "Info") -> int:
    return 1 if info.read_only or not info.size_bytes else 0


def _place(info: "Info") -> str:
    return str(info.path or "none")


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _age(time: timedelta) -> str:
    """Return a time in its largest unit that is at least one."""
    seconds = max(time.total_seconds(), 0.0)
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _print_json(info: "Info", **more: Any) -> None:
    print_json(
        {
            "schema": "superopt.cache/1",
            "file": None if info.path is None else str(info.path),
            "size_bytes": info.size_bytes,
            "limit_bytes": info.limit_bytes,
            "read_only": info.read_only,
            "fault": info.fault or None,
            "entries": dict(info.entries),
            **more,
        }
    )


def _entry_json(entry: "Entry") -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "key": entry.digest,
        "label": entry.label,
        "made": entry.made.isoformat(),
        "used": entry.used.isoformat(),
        "size_bytes": entry.size_bytes,
        "parts": dict(entry.parts),
    }
