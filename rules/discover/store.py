"""The file of rules: readable and versioned JSON, the same for any number of workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from superopt.errors import CheckpointError, InputError, SuperoptError, reason_of
from superopt.files import replace_text
from superopt.rules.discover.discover import Discovery
from superopt.rules.discover.language.rule import Rule, parse_rule, rule_text
from superopt.rules.discover.proof.prove import STATUSES, Proof, Status
from superopt.rules.discover.search.prune import Dropped

__all__ = ["SCHEMA", "RuleFile", "read_rules", "text_of_rules", "write_rules"]

SCHEMA = "superopt.discovered-rules/1"


@dataclass(frozen=True, slots=True)
class RuleFile:
    """What a file of rules says: the rules with their proofs, what was dropped, and where they come from."""

    rules: tuple[tuple[Rule, Proof], ...]
    dropped: tuple[Dropped, ...]
    origin: Mapping[str, Any]


def text_of_rules(found: Discovery) -> str:
    """Return the file of a discovery; it holds no times, so that the same search makes the same file."""
    setting = found.setting
    document = {
        "schema": SCHEMA,
        "origin": {
            "operators": [operator.name for operator in setting.operators],
            "inputs": {name: ["+".join(word) for word in units] for name, units in setting.inputs},
            "size": found.size,
            "seed": setting.seed,
            "samples": setting.samples,
            "counts": dict(found.counts),
        },
        "rules": [
            {
                "name": rule.name,
                "rule": rule_text(rule),
                "operators": list(rule.operators),
                "narrow": rule.narrow,
                "status": proof.status,
                "detail": proof.detail,
            }
            for rule, proof in found.rules
        ],
        "dropped": [{"rule": one.rule, "reason": one.reason} for one in found.dropped],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def write_rules(found: Discovery, path: Path) -> None:
    """Write the file of a discovery, whole or not at all."""
    try:
        replace_text(path, text_of_rules(found))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(path)!r}: {reason_of(error)}") from error


def read_rules(path: Path) -> RuleFile:
    """Return what a file of rules says; every rule is parsed and its shapes are checked again."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {str(path)!r}: {reason_of(error)}") from error
    try:
        if document["schema"] != SCHEMA:
            raise CheckpointError(
                f"{str(path)!r} is of schema {document['schema']!r}, not {SCHEMA!r}; discover the rules again"
            )
        rules = tuple(_rule(entry) for entry in document["rules"])
        dropped = tuple(Dropped(str(one["rule"]), str(one["reason"])) for one in document["dropped"])
        return RuleFile(rules, dropped, dict(document["origin"]))
    except CheckpointError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{str(path)!r} is no file of rules: {error!r}") from error
    except SuperoptError as error:
        raise CheckpointError(f"{str(path)!r} has a rule that is none: {error}") from error


def _rule(entry: Mapping[str, Any]) -> tuple[Rule, Proof]:
    status = entry["status"]
    if status not in STATUSES:
        raise InputError(f"{status!r} is no status; there are {', '.join(STATUSES)}")
    parsed = parse_rule(entry["rule"], name=str(entry["name"]))
    rule = Rule(parsed.name, parsed.inputs, parsed.left, parsed.right, bool(entry["narrow"]))
    return rule, Proof(cast("Status", status), str(entry["detail"]))
