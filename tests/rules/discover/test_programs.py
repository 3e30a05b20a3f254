"""Whole programs: what saturation finds, and that the extraction is the cheapest of all programs."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from superopt.bench.rewriting.measured import MeasuredCosts, compiled
from superopt.cli import main
from superopt.rules.discover.apply import Program
from superopt.rules.discover.language.images import CONVOLUTIONS, Convolution
from superopt.rules.discover.language.rule import parse_program, parse_rule
from superopt.rules.discover.language.values import fractions
from superopt.rules.discover.programs.extract import Extraction, cheapest, cheapest_trees, cost_of, made_of
from superopt.rules.discover.programs.saturate import Choices, Node, Saturation, choices_of
from superopt.rules.discover.proof.check import dimensions, evaluated
from superopt.rules.discover.store import SCHEMA

pytest.importorskip("highspy")

JOINT = (
    "a[m, k] w[k, n] v[k, p]: matmul(a, w), matmul(a, v) = "
    "split_cols(matmul(a, concat_cols(w, v)), n)[0], split_cols(matmul(a, concat_cols(w, v)), n)[1]"
)
RULES = [
    JOINT,
    "x[n, c, h, w] v[o, c, r, s] u[p, c, r, s]: concat_cols(conv_same(x, v), conv_same(x, u)) = "
    "conv_same(x, concat_rows(v, u))",
    "x[n, c, h, w] v[o, c, r, s] u[o, c, r, s]: add(conv_same(x, v), conv_same(x, u)) = "
    "conv_same(x, add(v, u))",
    "x[n, c, h, w] box[c, c, 3, 3]: avg_pool(x) = conv_same(x, box)",
    "a[m, n]: transpose(transpose(a)) = a",
    "v[m, 1] a[m, k] b[k, n]: scale_rows(v, matmul(a, b)) = matmul(scale_rows(v, a), b)",
]
KNOWN = [parse_rule(text) for text in RULES]


def elements(node: Node, choices: Choices) -> float:
    """Return a cost that depends on sizes alone: one for each element that is read, and ten to begin."""
    if node.is_input:
        return 0.0
    shapes = [choices.shapes.get(operand, ()) for operand in node.operands]
    return 10.0 + sum(np.prod([sum(map(int, word)) for word in shape]) for shape in shapes)


def extracted(text: str, weights: tuple[str, ...] = ()) -> tuple[str, float, Choices]:
    program = Program(*parse_program(text))
    choices = choices_of(program, KNOWN)
    fixed = made_of(choices, weights)

    def cost(node: Node) -> float:
        return 0.0 if node.made in fixed else elements(node, choices)

    found = cheapest(choices, cost)
    assert found.exact
    assert found.cost <= cheapest_trees(choices, cost).cost + 1e-6
    outputs = tuple(choices.expression(dict(found.chosen), made) for made in choices.outputs)
    return Program(program.inputs, outputs).text(), found.cost, choices


def test_two_products_with_one_input_become_one() -> None:
    # A split reads all that the product makes, so that is cheaper only where `a` is larger than the results.
    small, _, choices = extracted("a[64, 8] w[8, 64] v[8, 64]: matmul(a, w), matmul(a, v)", ("w", "v"))
    assert choices.complete
    assert small == "matmul(a, w), matmul(a, v)"
    large, _, _ = extracted("a[64, 512] w[512, 4] v[512, 4]: matmul(a, w), matmul(a, v)", ("w", "v"))
    assert large.count("split_cols(matmul(a, concat_cols(") == 2


def test_weights_are_joined_before_the_program_runs() -> None:
    text = "x[1, 8, 6, 6] v[4, 8, 3, 3] u[4, 8, 3, 3]: concat_cols(conv_same(x, v), conv_same(x, u))"
    assert extracted(text, ("v", "u"))[0] == "conv_same(x, concat_rows(v, u))"


def test_a_pool_beside_a_convolution_goes_into_its_weight() -> None:
    text = "x[1, 4, 6, 6] v[4, 4, 3, 3]: add(avg_pool(x), conv_same(x, v))"
    assert extracted(text, ("v",))[0] in ("conv_same(x, add(box, v))", "conv_same(x, add(v, box))")
    assert extracted("x[1, 4, 6, 6] v[4, 4, 5, 5]: add(avg_pool(x), conv_same(x, v))", ("v",))[0] != text


def test_a_column_is_applied_where_it_is_cheap() -> None:
    text = "v[64, 1] a[64, 64] b[64, 2]: matmul(scale_rows(v, a), b)"
    assert extracted(text)[0] == "scale_rows(v, matmul(a, b))"
    text = "v[64, 1] a[64, 2] b[2, 64]: scale_rows(v, matmul(a, b))"
    assert extracted(text)[0] == "matmul(scale_rows(v, a), b)"


def test_a_cycle_makes_nothing() -> None:
    """Where `x` is made of `y` and `y` of `x`, free of charge, neither is there."""
    nodes = (
        Node(0, "relu", (1,)),
        Node(1, "transpose", (0,)),
        Node(0, "exp", (2,)),
        Node(2, "a", ()),
    )
    costs = {"relu": 0.0, "transpose": 0.0, "exp": 5.0, "a": 0.0}
    found = cheapest(Choices(nodes, {}, (1,), True), lambda node: costs[node.name])
    assert found.cost == 5.0
    assert {node.name for node in found.chosen.values()} == {"transpose", "exp", "a"}


def by_trying_all(choices: Choices, costs: dict[Node, float]) -> float:
    """Return the cost of the cheapest program, found by choosing every node of every class in turn."""
    classes = sorted({node.made for node in choices.nodes})
    best = float("inf")
    for chosen in product(*([node for node in choices.nodes if node.made == made] for made in classes)):
        by_class = dict(zip(classes, chosen, strict=True))
        used: dict[int, Node] = {}

        def reaches(made: int, above: tuple[int, ...], by_class=by_class, used=used) -> bool:
            if made in above:
                return False
            used[made] = by_class[made]
            return all(reaches(operand, (*above, made)) for operand in by_class[made].operands)

        if all(list(map(reaches, choices.outputs, [()] * len(choices.outputs)))):
            best = min(best, cost_of(used.values(), costs.__getitem__))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_extraction_is_the_cheapest_of_all(seed: int) -> None:
    generator = np.random.default_rng(seed)
    count = 7
    nodes = [Node(0, "a", ()), Node(1, "b", ())]
    for made in range(1, count):
        for _ in range(int(generator.integers(1, 4))):
            name, arity = [("relu", 1), ("add", 2), ("exp", 1), ("split_rows", 1)][int(generator.integers(4))]
            operands = tuple(int(one) for one in generator.integers(0, count, arity))
            part, words = (int(generator.integers(2)), (("m",), ("n",))) if name == "split_rows" else (0, ())
            nodes.append(Node(made, name, operands, part, words))
        nodes.append(Node(made, "mul", (made - 1, int(generator.integers(made)))))  # so that all can be made
    distinct = tuple(dict.fromkeys(nodes))
    runs: dict[tuple[object, ...], float] = {}
    costs = {}
    for node in distinct:
        key = (node.name, node.operands, node.words) if node.words else (node,)
        costs[node] = 0.0 if node.is_input else runs.setdefault(key, float(generator.integers(1, 20)))
    choices = Choices(distinct, {}, (count - 1, count - 2), True)
    found: Extraction = cheapest(choices, costs.__getitem__)
    assert found.exact
    assert found.cost == pytest.approx(by_trying_all(choices, costs))
    assert cheapest_trees(choices, costs.__getitem__).cost >= found.cost - 1e-6


def test_a_limit_of_nodes_ends_the_saturation() -> None:
    text = " ".join(f"w{at}[8, 8]" for at in range(6))
    body = ", ".join(f"matmul(a, w{at})" for at in range(6))
    program = Program(*parse_program(f"a[8, 8] {text}: {body}"))
    choices = choices_of(program, KNOWN, Saturation(rounds=9, joint_rounds=9, nodes=500))
    assert not choices.complete


def test_extracted_programs_compute_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    given = {
        "a": torch.randn(16, 32, generator=generator),
        **{name: torch.randn(32, 32, generator=generator) for name in "wvu"},
    }
    program = Program(
        *parse_program("a[16, 32] w[32, 32] v[32, 32] u[32, 32]: matmul(a, w), matmul(a, v), matmul(a, u)")
    )
    choices = choices_of(program, KNOWN)
    fixed = made_of(choices, ("w", "v", "u"))
    # Products alone cost: so all three become one.
    found = cheapest(choices, lambda node: float(node.name == "matmul" and node.made not in fixed))
    assert found.cost == 1.0
    outputs = tuple(choices.expression(dict(found.chosen), made) for made in choices.outputs)
    weights = {name: given[name] for name in "wvu"}
    one = compiled(program, weights)(a=given["a"])
    other = compiled(Program(program.inputs, outputs), weights)(a=given["a"])
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_costs_are_measured_once_for_each_operator_and_size() -> None:
    program = Program(
        *parse_program("a[64, 64] b[64, 64] w[64, 64]: add(matmul(a, w), matmul(b, w)), relu(w)")
    )
    choices = choices_of(program, [])
    costs = MeasuredCosts(choices, ("w",))
    told = {
        node.name: [costs(one) for one in choices.nodes if one.name == node.name] for node in choices.nodes
    }
    assert told["matmul"][0] == told["matmul"][1] > 0
    assert told["relu"] == [0.0]  # made of weights alone
    assert set(told["a"]) == {0.0}


def file_of(path: Path, *rules: str) -> str:
    entries = [
        {"name": f"r{at}", "rule": rule, "narrow": False, "status": "proven", "detail": ""}
        for at, rule in enumerate(rules)
    ]
    path.write_text(json.dumps({"schema": SCHEMA, "rules": entries, "dropped": [], "origin": {}}))
    return str(path)


def test_the_command_line_prints_the_cheapest_program(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rules = file_of(tmp_path / "rules.json", "a[m, n]: transpose(transpose(a)) = a")
    apply = ["rules", "apply", rules, "--cheapest", "--rounds", "3"]
    text = "a[64, 64] w[64, 64]: matmul(transpose(transpose(relu(a))), w)"
    assert main([*apply, "--weights", "w", "--json", text]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["program"] == "a[64, 64] w[64, 64]: matmul(relu(a), w)"
    assert document["optimal"]
    assert document["complete"]
    assert document["cost_us"]["exact"] < document["cost_us"]["given"]
    assert set(document["median_us"]) == {"given", "trees", "exact"}
    program = tmp_path / "program.txt"
    program.write_text(text.replace(": ", ":\n  "))
    assert main([*apply, str(program)]) == 0
    assert "matmul(relu(a), w)" in capfd.readouterr().out
    assert main([*apply, "a[64, 64]: relu(a)"]) == 1  # nothing is cheaper


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--cheapest", "a[m, 4]: relu(a)"], "give a numbers in place of m"),
        (["--cheapest", "--weights", "w", "a[4, 4]: relu(a)"], "no input 'w'"),
        (["--weights", "a", "a[4, 4]: relu(a)"], "--cheapest"),
    ],
)
def test_what_has_no_cost_is_one_line(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = file_of(tmp_path / "rules.json", "a[m, n]: transpose(transpose(a)) = a")
    assert main(["rules", "apply", rules, *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("kind", CONVOLUTIONS, ids=lambda kind: kind.name)
def test_a_convolution_that_is_run_computes_what_its_meaning_says(kind: Convolution) -> None:
    weight = {"": "v[6, 4, 3, 2]", "groups": "v[3+3, 2, 3, 2]", "depth": "v[4, 1, 3, 2]"}[kind.groups]
    channels = "2+2" if kind.groups == "groups" else "4"
    program = Program(*parse_program(f"x[2, {channels}, 5, 6] {weight}: {kind.name}(x, v)"))
    generator = np.random.default_rng(0)
    values = {
        name: fractions(generator.integers(-8, 9, (1, 1, *dimensions(shape, {}))), 4)
        for name, shape in program.inputs
    }
    expected = evaluated(program.outputs[0], values, {}).approximate[0, 0]
    given = {
        name: torch.tensor(value.approximate[0, 0], dtype=torch.float32) for name, value in values.items()
    }
    [made] = compiled(program, {"v": given["v"]})(x=given["x"])
    assert np.allclose(made.numpy(), expected, atol=1e-4)
