"""Cutting a graph in two: the halves, one after the other, are the whole."""

import pytest
import torch

from superopt.ir import Graph, cut_graph, parse_graph, selects
from superopt.ir.cut import cut_after
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.workloads import WORKLOADS

SMALL = {
    "M": 3, "K": 8, "N": 6, "R": 2, "B": 2, "H": 4, "G": 2, "S": 5, "T": 7, "D": 4, "L": 6, "E": 8,
    "Q": 16, "P": 8, "V": 9,
}  # fmt: skip
ALSO_READ = """
    graph also
    axes m=3 k=4 n=5
    in x: f16[m, k]
    in w: f16[k, n]
    in v: f16[n, k]
    t3 = contract[k](x, w)
    t4 = exp(t3)
    t5 = contract[n](t4, v)
    t6 = sum[n](t4)
    out h: f16[m, n] = t4
    out y: f16[m, k] = t5
    out s: f16[m] = t6
    out copy: f16[m, k] = x
"""


def small_graph(name: str) -> Graph:
    item = WORKLOADS[name]
    sizes = {size: value for size, value in SMALL.items() if size in item.sizes}
    return trace(item.function, *item.inputs(**sizes), name=name.replace("-", "_")).graph


def whole_and_halves(graph: Graph, halves: tuple[Graph, Graph]) -> None:
    torch.manual_seed(0)
    tensors = {port.name: torch.rand(graph.shape(port), dtype=torch.float64) + 0.5 for port in graph.inputs}
    known = dict(tensors)
    for half in halves:
        known |= run_graph(half, {port.name: known[port.name] for port in half.inputs})
    whole = run_graph(graph, tensors)
    torch.testing.assert_close({name: known[name] for name in whole}, whole)


@pytest.mark.parametrize(
    "name", ["rmsnorm-mlp", "mha", "mla", "gqa", "matmul-matmul", "ntrans", "llama-layer"]
)
def test_halves_compose_to_the_whole(name: str) -> None:
    graph = small_graph(name)
    halves = cut_graph(graph)
    assert halves is not None
    head, tail = halves
    assert (head.name, tail.name) == (f"{graph.name}.0", f"{graph.name}.1")
    assert all(any(step.op in ("sum", "contract") for step in half.steps) for half in halves)
    ports = {output.port.name: output.port for half in halves for output in half.outputs}
    assert all(ports[output.port.name] == output.port for output in graph.outputs)
    whole_and_halves(graph, halves)


def test_ports_of_halves_are_those_that_they_use() -> None:
    halves = cut_graph(small_graph("rmsnorm-mlp"))
    assert halves is not None
    head, tail = halves
    made = {output.port.name: output.port for output in head.outputs}
    given = {port.name: port for port in tail.inputs}
    crossing = made.keys() & given.keys()
    assert crossing
    assert all(made[name] == given[name] for name in crossing)
    assert {port.name for port in head.inputs} | set(given) - crossing == {"x", "g", "w1", "w2", "w3"}
    for half in halves:
        read = {i for step in half.steps for i in step.inputs} | {output.value for output in half.outputs}
        assert read >= set(range(len(half.inputs)))
        used = {axis for port in half.inputs for axis in port.axes}
        assert used >= set(half.sizes)


def test_a_result_that_is_read_further_crosses_under_its_own_name() -> None:
    graph = parse_graph(ALSO_READ)
    halves = cut_graph(graph)
    assert halves is not None
    names = [[output.port.name for output in half.outputs] for half in halves]
    assert sorted(names[0] + names[1]) == ["copy", "h", "s", "y"]
    whole_and_halves(graph, halves)


def test_what_reads_no_tensor_is_in_both_halves() -> None:
    graph = parse_graph("""
        graph masked
        axes m=3 k=4 n=5
        in x: f32[m, k]
        in w: f32[k, n]
        in v: f32[n]
        t3 = index[m]()
        t4 = const[1]()
        t5 = ge(t3, t4)
        t6 = contract[k](x, w)
        t7 = mul(t6, t5)
        t8 = contract[n](t7, v)
        t9 = mul(t8, t5)
        t10 = exp(t9)
        out y: f32[m] = t10
    """)
    halves = cut_graph(graph)
    assert halves is not None
    assert all("ge" in {step.op for step in half.steps} for half in halves)
    assert all(port.dtype == "f32" and port.name != "masked_v5" for half in halves for port in half.inputs)
    whole_and_halves(graph, halves)


@pytest.mark.parametrize(
    "steps",
    [
        [],
        ["t1 = sum[k](x)"],
        ["t1 = index[m]()", "t2 = sum[k](x)", "t3 = const[2]()"],  # the rest is tensorless
        ["t1 = exp(x)", "t2 = sum[k](t1)", "t3 = neg(t2)"],  # one side would have no reduction
    ],
)  # fmt: skip
def test_nothing_to_cut(steps: list[str]) -> None:
    value = steps[-1].split(" = ")[0] if steps else "x"
    text = ["graph g", "axes m=2 k=3", "in x: f32[m, k]", *steps, f"out y: f32[m, k] = {value}"]
    assert cut_graph(parse_graph("\n".join(text))) is None


ROLES = """
    graph roles
    axes m=3 k=4 n=5
    in x: FIRST[m, k]
    in w: SECOND[k, n]
    in v: SECOND[n, k]
    t3 = square(x)
    t4 = sum[k](t3)
    t5 = contract[k](x, w)
    t6 = rsqrt(t4)
    t7 = mul(t5, t6)
    t8 = gt(t7, t5)
    t9 = exp(t7)
    t10 = mul(t8, t9)
    t11 = contract[n](t10, v)
    t12 = mul(t11, t6)
    out s: SUMS[m] = t4
    out y: FIRST[m, k] = t12
"""


@pytest.mark.parametrize(
    ("dtypes", "early", "crossing"),
    [
        ("f16 f16 f32", range(3, 9), {"roles_v6": "f32", "roles_v7": "f16", "roles_v8": "f16"}),
        ("bf16 bf16 f32", range(3, 9), {"roles_v6": "f32", "roles_v7": "bf16", "roles_v8": "bf16"}),
        ("f32 f32 f32", range(3, 9), {"roles_v6": "f32", "roles_v7": "f32", "roles_v8": "f32"}),
        ("f64 f32 f32", range(3, 9), {"roles_v6": "f64", "roles_v7": "f64", "roles_v8": "f64"}),
        ("f16 f32 f32", range(3, 6), {"s": "f32", "roles_v5": "f32"}),  # x.float() @ w
        ("f16 f16 f16", range(3, 5), {"roles_v4": "f32"}),  # `s` is rounded for who reads it alone
        ("f32 f32 f32", range(3, 5), {"s": "f32"}),
    ],
)
def test_what_crosses_has_the_dtype_that_a_program_gives_to_it(dtypes, early, crossing) -> None:
    names = ("FIRST", "SECOND", "SUMS")
    text = ROLES
    for name, dtype in zip(names, dtypes.split(), strict=True):
        text = text.replace(name, dtype)
    graph = parse_graph(text)
    head, tail = cut_after(graph, early)
    given = {port.name: port.dtype for port in tail.inputs if port.name not in "xwv"}
    assert given == crossing
    marks = [step.op for step in tail.steps if step.op in ("gt", "ne")]
    assert marks == (["ne"] if "roles_v8" in crossing else ["gt"])
    assert "mul" in {step.op for step in tail.steps if selects(tail, step)}
    assert given.items() <= {output.port.name: output.port.dtype for output in head.outputs}.items()
    whole_and_halves(graph, (head, tail))
