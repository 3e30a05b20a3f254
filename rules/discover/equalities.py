"""The equalities of a search as a file: a discovery that was ended goes on from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt.errors import CheckpointError, reason_of
from superopt.files import replace_text
from superopt.rules.discover.language.rule import Rule, parse_rule, rule_text
from superopt.rules.discover.search.prune import Dropped

__all__ = ["Equalities", "read_equalities", "write_equalities"]

_SCHEMA = "superopt.equalities/1"


@dataclass(frozen=True, slots=True)
class Equalities:
    """The rules that are left among the terms, those of two outputs, what was dropped, and all counts."""

    rules: tuple[Rule, ...]
    joint: tuple[Rule, ...]
    dropped: tuple[Dropped, ...]
    counts: Mapping[str, int]


def write_equalities(found: Equalities, path: Path, origin: str) -> None:
    """Write the equalities of a search, which `origin` describes, whole or not at all."""
    document = {
        "schema": _SCHEMA,
        "origin": origin,
        "rules": _as_data(found.rules),
        "joint": _as_data(found.joint),
        "dropped": [[one.rule, one.reason] for one in found.dropped],
        "counts": dict(found.counts),
    }
    try:
        replace_text(path, json.dumps(document) + "\n")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot write {str(path)!r}: {reason_of(error)}") from error


def _as_data(rules: Sequence[Rule]) -> list[list[Any]]:
    return [[rule_text(rule), rule.narrow] for rule in rules]


def read_equalities(path: Path, origin: str) -> Equalities:
    """Return the equalities of a file; those of another search are refused."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != _SCHEMA or document["origin"] != origin:
            raise CheckpointError(f"{str(path)!r} is of another search; give another folder")
        return Equalities(
            _rules(document["rules"]),
            _rules(document["joint"]),
            tuple(Dropped(str(rule), str(reason)) for rule, reason in document["dropped"]),
            {str(name): int(count) for name, count in document["counts"].items()},
        )
    except OSError as error:
        raise CheckpointError(f"cannot read {str(path)!r}: {reason_of(error)}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} has no equalities: {error!r}") from error


def _rules(entries: Sequence[Sequence[Any]]) -> tuple[Rule, ...]:
    found = []
    for text, narrow in entries:
        rule = parse_rule(text)
        found.append(Rule(rule.name, rule.inputs, rule.left, rule.right, bool(narrow)))
    return tuple(found)
