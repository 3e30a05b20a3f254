"""The oracle admits every part of a goal, refutes what is plausible and wrong, and stays within limits."""

import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from superopt.ir import parse_graph
from superopt.rules.saturate import saturate
from superopt.rules.smt import Answer, SubexpressionOracle
from superopt.rules.terms import Goal, Node, goal_of

Spelled = Callable[..., list[tuple[Any, tuple[Node, ...]]]]


def test_every_entry_of_a_complete_table_is_entailed(program: Goal, spelled: Spelled) -> None:
    table = saturate(program)
    oracle = SubexpressionOracle(program, timeout_ms=2000, budget_s=60)
    answers = {term: oracle.admits(term) for _, term in spelled(table)}
    assert table.truncated is None
    assert [term for term, answer in answers.items() if answer is not Answer.ENTAILED] == []


def test_most_of_what_the_table_misses_is_refuted(programs: dict[str, Goal], spelled: Spelled) -> None:
    """Products, sums and functions of true parts that are no parts themselves."""
    goal = programs["attention"]
    terms = spelled(saturate(goal))
    present = {(op, attr, args) for (op, attr, args, _), _ in terms}
    oracle = SubexpressionOracle(goal, budget_s=0)
    first = {}
    for (_, _, _, found), term in terms:
        first.setdefault(found, term)
    asked = refuted = 0
    for found, term in first.items():
        last = len(term) - 1
        for code, op in ((3, "inv"), (5, "exp"), (6, "sqrt"), *((11, "sum") for _ in goal.groups)):
            attrs = range(len(goal.groups)) if op == "sum" else (0,)
            for attr in attrs:
                if (code, attr, (found,)) not in present:
                    asked += 1
                    refuted += oracle.admits((*term, Node(op, (last,), attr))).pruned
        for other, more in first.items():
            pair = tuple(Node(n.op, tuple(i + len(term) for i in n.args), n.attr) for n in more)
            for code, op in ((1, "mul"), (2, "add")):
                if not {(code, 0, (found, other)), (code, 0, (other, found))} & present:
                    asked += 1
                    product = Node(op, (last, last + len(more)))
                    refuted += oracle.admits((*term, *pair, product)).pruned
    assert asked > 1500
    assert refuted > 0.9 * asked


def leaf(goal: Goal, name: str) -> Node:
    names = [port.name for port in goal.graph.inputs]
    return Node("leaf", (), next(i for i, one in enumerate(goal.leaves) if one.position == names.index(name)))


NEGATIVES = [
    ("rmsnorm_linear", "exp", ("w",)),
    ("rmsnorm_linear", "cube", ("x",)),
    ("rmsnorm_linear", "sum", ("x", "m")),
    ("rmsnorm_linear", "sum", ("w", "n")),
    ("rmsnorm_linear", "product", ("g", "g")),
    ("rmsnorm_linear", "inv", ("w",)),
    ("rmsnorm_linear", "addition", ("x", "w")),
    ("attention", "product", ("q", "v")),
    ("attention", "addition", ("q", "k")),
    ("attention", "exp", ("v",)),
    ("attention", "inv", ("q",)),
    ("attention", "sum", ("v", "e")),
    ("attention", "sum", ("k", "n")),
    ("lora", "product", ("w", "a")),
    ("lora", "exp", ("x",)),
    ("lora", "sum", ("a", "n")),
    ("gated_mlp", "cube", ("w1",)),
    ("gated_mlp", "exp", ("w2",)),
    ("gated_mlp", "sum", ("x", "n")),
]


@pytest.mark.parametrize(("name", "op", "args"), NEGATIVES)
def test_plausible_and_wrong(programs: dict[str, Goal], name: str, op: str, args: tuple[str, ...]) -> None:
    goal = programs[name]
    nodes = [leaf(goal, args[0])]
    if op == "cube":
        nodes += [Node("mul", (0, 0)), Node("mul", (0, 1))]
    elif op in ("product", "addition"):
        nodes += [leaf(goal, args[1]), Node("mul" if op == "product" else "add", (0, 1))]
    else:
        nodes.append(Node(op, (0,), goal.bit(args[1]) if op == "sum" else 0))
    assert SubexpressionOracle(goal, budget_s=0).admits(nodes) is Answer.REFUTED


def test_budget(programs: dict[str, Goal]) -> None:
    goal = programs["rmsnorm_linear"]
    oracle = SubexpressionOracle(goal, budget_s=0)
    assert oracle.admits(goal.nodes) is Answer.UNKNOWN
    assert not Answer.UNKNOWN.pruned


def test_a_known_term_is_not_asked_again(programs: dict[str, Goal], monkeypatch: pytest.MonkeyPatch) -> None:
    goal = programs["rmsnorm_linear"]
    oracle = SubexpressionOracle(goal)
    x, w = leaf(goal, "x"), leaf(goal, "w")
    assert oracle.admits((x, w, Node("mul", (0, 1)))) is Answer.ENTAILED
    monkeypatch.setattr(oracle, "_ask", lambda term: Answer.UNKNOWN)
    assert oracle.admits((w, x, Node("mul", (0, 1)))) is Answer.ENTAILED
    assert oracle.admits((x,)) is Answer.UNKNOWN


def test_what_z3_has_no_answer_to_is_unknown(programs: dict[str, Goal]) -> None:
    goal = programs["rmsnorm_linear"]
    wrong = (leaf(goal, "g"), Node("sum", (0,), goal.bit("k")))  # the invariant does not see this one
    assert SubexpressionOracle(goal).admits(wrong) is Answer.UNKNOWN


def test_nothing_is_refuted_where_the_invariant_is_no_model(expressions: Callable[..., Goal]) -> None:
    """Where 1 / (1 / a) occurs, 1 / x is a part of x by the invariant, which therefore says nothing."""
    goal = expressions({"a": "m", "b": "m"}, "(mul b (inv (mul b (inv a))))")
    oracle = SubexpressionOracle(goal, timeout_ms=2000)
    term = expressions({"a": "m", "b": "m"}, "(mul a (inv b))").nodes
    assert oracle.admits(term) is Answer.ENTAILED


def test_several_outputs_and_renamed_axes() -> None:
    goal = goal_of(
        parse_graph("""graph gram
        axes t=4 u=4 k=8
        in x: f32[t, k]
        y = rename[t->u](x)
        p = contract[k](x, y)
        e = exp(x)
        out a: f32[t, u] = p
        out b: f32[t, k] = e""")
    )
    oracle = SubexpressionOracle(goal, timeout_ms=2000)
    for end in range(1, len(goal.nodes) + 1):
        assert oracle.admits(goal.nodes[:end]) is Answer.ENTAILED
    access = next(i for i, node in enumerate(goal.nodes) if node.op == "access")
    assert oracle.admits((*goal.nodes[: access + 1], Node("exp", (access,)))).pruned


def _ask_in_child(oracle: SubexpressionOracle, nodes: tuple[Node, ...], results: Any) -> None:
    results.put([oracle.admits(nodes[: i + 1]).value for i in range(len(nodes))])


def test_forked_workers(programs: dict[str, Goal]) -> None:
    goal = programs["attention"]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    oracle = SubexpressionOracle(goal, timeout_ms=2000)
    workers = [context.Process(target=_ask_in_child, args=(oracle, goal.nodes, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=30) for _ in workers] == [["entailed"] * len(goal.nodes)] * 2
    for worker in workers:
        worker.join(timeout=30)
        assert worker.exitcode == 0


def test_z3_is_loaded_when_asked() -> None:
    code = (
        "import sys\n"
        "import superopt.rules.smt, superopt.rules.proofs\n"
        "assert 'z3' not in sys.modules and 'egglog' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ctrl_c_ends_a_query(programs: dict[str, Goal]) -> None:
    code = (
        "import sys\n"
        "from superopt.ir import parse_graph\n"
        "from superopt.rules.smt import SubexpressionOracle\n"
        "from superopt.rules.terms import goal_of\n"
        "goal = goal_of(parse_graph(sys.argv[1]))\n"
        "oracle = SubexpressionOracle(goal, budget_s=60)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    oracle._known.clear()\n"
        "    oracle.admits(goal.nodes)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(programs["rmsnorm_linear"].graph)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.7)
        start = time.monotonic()
        while process.poll() is None and time.monotonic() - start < 10:
            process.send_signal(signal.SIGINT)  # Python drops one that meets a destructor, as of a solver
            time.sleep(0.3)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()  # it would go on for ever
    assert time.monotonic() - start < 20  # it would go on for ever
    assert "KeyboardInterrupt" in errors
