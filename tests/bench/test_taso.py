"""TASO's file of rules: what is read of it, and what rules say of each; discovery is measured."""

import json
import subprocess
import sys

import pytest

from superopt.bench.discover.taso import Substitution, _Reader, answers_for, substitutions
from superopt.rules.discover.language.rule import parse_rule, rule_text
from superopt.rules.discover.proof.derive import Deriver

CONV, CONCAT, ADD = 3, 12, 16


def number(value: int) -> bytes:
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def integer(field: int, value: int) -> bytes:
    return number(field << 3) + number(value)


def message(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return number(field << 3 | 2) + number(len(body)) + body


def step(field: int, kind: int, operands: list[tuple[int, int]], **parameters: int) -> bytes:
    inputs = (message(2, integer(1, at), integer(2, part)) for at, part in operands)
    pairs = (message(3, integer(1, int(key[1:])), integer(2, value)) for key, value in parameters.items())
    return message(field, integer(1, kind), *inputs, *pairs)


def file_of(*steps: bytes, outputs: tuple[int, int]) -> bytes:
    ends = message(3, integer(1, outputs[0]), integer(2, outputs[1]), integer(3, 0), integer(4, 0))
    return message(1, *steps, ends)


MERGED = file_of(  # two convolutions of one image, or one with joined weights
    step(1, CONV, [(-7, 0), (-10, 0)], p9=0),
    step(1, CONV, [(-7, 0), (-11, 0)], p9=0),
    step(1, CONCAT, [(0, 0), (1, 0)], p11=1),
    step(2, CONCAT, [(-10, 0), (-11, 0)], p11=0),
    step(2, CONV, [(-7, 0), (0, 0)], p9=0),
    outputs=(2, 1),
)
WRONG = file_of(step(1, ADD, [(-1, 0), (-2, 0)]), step(2, ADD, [(-1, 0), (-1, 0)]), outputs=(0, 0))


def test_a_file_is_read_as_rules() -> None:
    merged, wrong = substitutions(MERGED + WRONG)
    rule = _Reader().rule(merged)
    assert rule is not None
    assert rule_text(rule) == (
        "x[m, k, n, p] u[q, k, r, t] v[u, k, r, t]: concat_cols(conv_same(x, u), conv_same(x, v)) = "
        "conv_same(x, concat_rows(u, v))"
    )
    assert isinstance(wrong, Substitution)


@pytest.mark.parametrize(
    ("known", "data", "answer"),
    [
        ("x[n, c, h, w] v[o, c, r, s] u[p, c, r, s]: conv_same(x, concat_rows(v, u)) = "
         "concat_cols(conv_same(x, v), conv_same(x, u))", MERGED, "found"),
        ("x[n, c, h, w] y[n, c, h, w]: add(x, y) = add(y, x)", MERGED, "proven, not derived"),
        ("a[m, n] b[m, n]: add(a, b) = add(b, a)", WRONG, "wrong"),
    ],
)  # fmt: skip
def test_each_published_rule_has_an_answer(known: str, data: bytes, answer: str) -> None:
    rules = [parse_rule(known)]
    [given] = substitutions(data)
    rule = _Reader().rule(given)
    assert rule is not None
    assert answers_for([rule], rules, Deriver(rules), seed=0) == [answer]


@pytest.mark.slow
def test_a_case_is_measured(tmp_path):
    out = tmp_path / "discover.json"
    rules = tmp_path / "rules.json"
    command = [sys.executable, "-m", "superopt.bench.discover", "all-2", "--repeats", "1", "--json", str(out)]
    done = subprocess.run([*command, "--rules", str(rules)], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    [record] = json.loads(out.read_text())["cases"].values()
    assert record["proven"] > 0
    assert record["refuted"] == 0
    assert rules.exists()
