"""MuGraphs: every rule broken once, the default schedules of known programs, and what they compute."""

import pytest

from superopt.errors import GraphError
from superopt.ir import (
    Block,
    Call,
    Loop,
    MuGraph,
    Tile,
    check_mugraph,
    fuse,
    is_matmul,
    parse_graph,
    parse_mugraph,
    print_mugraph,
)

TEXT = """graph norm
axes m=4 k=2000 n=3000
in x: f32[m, k]
in w: f32[k, n]
kernel grid[m, n]
  loop[k]
    t2 = square(x)
    t3 += sum[k](t2)
    t4 += contract[k](x, w)
  t5 = sqrt(t3)
  t6 = const[2]()
  t7 = mul(t5, t6)
  t8 = div(t4, t7)
out y: f32[m, n] = t8
"""
GRAPH = parse_mugraph(TEXT).graph
T2, T3, T4, T5, T6, T7, T8 = map(Tile, range(2, 9))
WALK = Loop("k", (T2, T3, T4))
AFTER = (T5, T6, T7, T8)


def one(*body: Tile | Loop, grid: tuple[str, ...] = ("m", "n")) -> tuple[Block, ...]:
    return (Block(grid, body),)


BROKEN = {
    "kernel 0: the grid has the undeclared axis 'q'": one(WALK, *AFTER, grid=("m", "q")),
    "kernel 0: the grid has axis 'm' twice": one(WALK, *AFTER, grid=("m", "m")),
    "kernel 0: a loop walks along the undeclared axis 'q'": one(WALK, Loop("q", AFTER)),
    "kernel 0: axis 'n' is looped over and on the grid": one(WALK, Loop("n", AFTER)),
    "kernel 0: a loop over 'k' stands inside another one": one(Loop("k", (WALK,)), *AFTER),
    "kernel 0: the loop over 'k' does nothing": one(WALK, Loop("k", ()), *AFTER),
    "kernel 0: it computes value 1, which is no step": one(Tile(1), WALK, *AFTER),
    "kernel 0: it computes value 9, which is no step": one(Tile(9), WALK, *AFTER),
    "kernel 0: t5 is computed a second time; if that is meant, say 'again'": one(WALK, T5, *AFTER),
    "kernel 0: t5 is computed 'again', but never was before": one(WALK, Tile(5, recomputed=True), *AFTER[1:]),
    "kernel 0: t5 reads t3 inside the loop that is still adding it up; it needs a second loop": one(
        Loop("k", (T2, T3, T4, T5)), *AFTER[1:]
    ),
    "kernel 0: t3 reads t2, a tile of a loop that has ended; compute it 'again' where used": one(
        Loop("k", (T2, T4)), Loop("k", (T3,)), *AFTER
    ),
    "kernel 0: t8 reads t7, which neither this kernel nor an earlier one has computed yet": one(
        WALK, T5, T6, T8, T7
    ),
    "kernel 0: t5 reads t3, which neither": (Block(("m",), (T5,)), *one(WALK, T6, T7, T8)),
    "kernel 1: t7 reads t6, which neither": (
        *one(Loop("k", (T2, T3)), T6, grid=("m",)), Block(("m",), (T5, T7)), *one(Loop("k", (T4,)), T8),
    ),
    "kernel 0: t3 reduces 'k', which is on the grid; split the axis and combine its parts": one(
        T2, T3, T4, *AFTER, grid=("m", "n", "k")
    ),
    "kernel 0: t4 adds up over 'k', with another part for each turn of the inner loop": one(
        Loop("k", (T2, T3, Loop("n", (T4,)))), T5, T6, T7, Loop("n", (T8,)), grid=("m",)
    ),
    "kernel 0: it stores t5 in every turn of the loop over 'n'; compute it outside": (
        *one(Loop("k", (T2, T3)), Loop("n", (T5, Loop("k", (T4,)))), grid=("m",)), *one(T6, T7, T8),
    ),
    "muGraph 'norm': no kernel computes t8": one(WALK, T5, T6, T7),
}  # fmt: skip


def test_the_text_is_the_types() -> None:
    mugraph = MuGraph(GRAPH, one(WALK, *AFTER))
    assert check_mugraph(mugraph) is mugraph
    assert print_mugraph(mugraph) == str(mugraph) == TEXT
    assert parse_mugraph(TEXT) == mugraph
    assert (mugraph.loads(mugraph.kernels[0]), mugraph.stores(mugraph.kernels[0])) == ((0, 1), (8,))


@pytest.mark.parametrize("message", BROKEN)
def test_broken_rules(message: str) -> None:
    with pytest.raises(GraphError) as caught:
        check_mugraph(MuGraph(GRAPH, BROKEN[message]))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "kernels",
    [
        one(Loop("k", (T2, T3)), Loop("k", (T4,)), *AFTER),  # two passes
        one(Loop("k", (T2, T3)), Loop("k", (Tile(2, recomputed=True), T4)), *AFTER),
        (*one(Loop("k", (T2, T3)), T5, grid=("m",)), *one(Loop("k", (T4,)), T6, T7, T8)),
        (*one(Loop("k", (T2, T3)), T5, T6, T7, grid=("m",)), *one(Loop("k", (T4,)), T6, T8)),  # constants
        (*one(T2, T3, T5, grid=("m",)), Call((T4,)), *one(T6, T7, T8)),  # k whole in the first
        one(WALK, *AFTER, grid=()),  # one program
        one(Loop("k", (T2, T3)), Loop("n", (Loop("k", (T4,)), *AFTER)), grid=("m",)),
    ],
)  # fmt: skip
def test_other_schedules_of_the_same_graph(kernels: tuple[Block | Call, ...]) -> None:
    mugraph = check_mugraph(MuGraph(GRAPH, kernels))
    assert parse_mugraph(print_mugraph(mugraph)) == mugraph


def test_loads_and_stores_are_what_crosses() -> None:
    mugraph = MuGraph(GRAPH, (*one(Loop("k", (T2, T3)), T5, grid=("m",)), Call((T4,)), *one(T6, T7, T8)))
    assert [mugraph.loads(kernel) for kernel in mugraph.kernels] == [(0,), (0, 1), (4, 5)]
    assert [mugraph.stores(kernel) for kernel in mugraph.kernels] == [(5,), (4,), (8,)]


GRAM = """graph gram
axes i=4 j=4 k=2000
in x: f32[i, k]
{}
out y: f32[i, j] = t3
"""


@pytest.mark.parametrize(
    ("body", "ok"),
    [
        ("kernel grid[j]\n  loop[k]\n    t1 = exp(x)\n    t2 = rename[i->j](t1)\n"
         "    t3 += contract[k](t1, t2)", False),
        ("kernel grid[]\n  loop[k]\n    t1 = exp(x)\n    t2 = rename[i->j](t1)\n"
         "    t3 += contract[k](t1, t2)", True),
        ("kernel grid[i, k]\n  t1 = exp(x)\nkernel grid[i, j]\n  loop[k]\n    t2 = rename[i->j](t1)\n"
         "    t3 += contract[k](t1, t2)", True),
    ],
)  # fmt: skip
def test_a_program_does_not_see_the_tiles_of_others(body: str, ok: bool) -> None:
    if ok:
        assert print_mugraph(parse_mugraph(GRAM.format(body))) == GRAM.format(body)
        return
    with pytest.raises(GraphError, match="t2 reads other places of t1 along 'j', which other programs"):
        parse_mugraph(GRAM.format(body))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel grid[m, n]", "kernel [m, n]", "line 5: 'kernel [m, n]' is not 'kernel grid[axes]'"),
        ("    t2 =", "   t2 =", "line 7: indent by two spaces"),
        ("    t2 =", "      t2 =", "line 7: 't2 = square(x)' is neither 'loop[axis]' nor"),
        ("  loop[k]", "  loop k", "line 6: 'loop k' is neither 'loop[axis]' nor 'name = op(...)' at depth 1"),
        ("t3 += sum", "t3 = sum", "line 8: write t3 += sum[k](t2) here"),
        ("t5 = sqrt", "t5 += sqrt", "line 10: write t5 = sqrt(t3) here"),
        ("  t6 =", "  again t5 = exp(t3)\n  t6 =", "line 11: t5 was sqrt(t3) before"),
        ("kernel grid[m, n]", "kernel call", "line 5: a call of a library has no loops"),
    ],
)  # fmt: skip
def test_errors_of_the_text_name_the_line(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(GraphError) as caught:
        parse_mugraph(TEXT.replace(old, new))
    assert message in str(caught.value)


# -- the default schedule

HEADS = "graph g\naxes b=8 s=3000 d=64 e=64 so=16 si=300\n"
SCHEDULES = {
    "attention, division delayed": (
        """in q: f32[b, d]\nin k: f32[s, d]\nin v: f32[s, e]
t3 = contract[d](q, k)\nt4 = exp(t3)\nt5 = contract[s](t4, v)\nt6 = sum[s](t4)\nt7 = div(t5, t6)
out y: f32[b, e] = t7""",
        """
kernel grid[b]
  loop[s]
    t3 = contract[d](q, k)
    t4 = exp(t3)
    t5 += contract[s](t4, v)
    t6 += sum[s](t4)
  t7 = div(t5, t6)""",
    ),
    "attention, as written": (
        """in q: f32[b, d]\nin k: f32[s, d]\nin v: f32[s, e]
t3 = contract[d](q, k)\nt4 = exp(t3)\nt5 = sum[s](t4)\nt6 = div(t4, t5)\nt7 = contract[s](t6, v)
out y: f32[b, e] = t7""",
        """
kernel grid[b]
  loop[s]
    t3 = contract[d](q, k)
    t4 = exp(t3)
    t5 += sum[s](t4)
kernel grid[b, e]
  loop[s]
    t6 = div(t4, t5)
    t7 += contract[s](t6, v)""",
    ),
    "attention, keys split": (
        """in q: f32[b, d]\nin k: f32[(so si), d]\nin v: f32[(so si), e]
t3 = contract[d](q, k)\nt4 = exp(t3)\nt5 = contract[si](t4, v)\nt6 = sum[so](t5)\nt7 = sum[si](t4)
t8 = sum[so](t7)\nt9 = div(t6, t8)\nout y: f32[b, e] = t9""",
        """
kernel grid[b, so]
  loop[si]
    t3 = contract[d](q, k)
    t4 = exp(t3)
    t5 += contract[si](t4, v)
    t7 += sum[si](t4)
kernel grid[b, e]
  loop[so]
    t6 += sum[so](t5)
    t8 += sum[so](t7)
  t9 = div(t6, t8)""",
    ),
    "softmax, two passes": (
        """in x: f32[b, s]
t1 = exp(x)\nt2 = sum[s](t1)\nt3 = div(t1, t2)
out y: f32[b, s] = t3""",
        """
kernel grid[b]
  loop[s]
    t1 = exp(x)
    t2 += sum[s](t1)
  loop[s]
    again t1 = exp(x)
    t3 = div(t1, t2)""",
    ),
    "a maximum and a sum share a loop": (
        """in x: f32[b, s]
t1 = max[s](x)\nt2 = sum[s](x)\nt3 = div(t1, t2)
out y: f32[b] = t3""",
        """
kernel grid[b]
  loop[s]
    t1 max= max[s](x)
    t2 += sum[s](x)
  t3 = div(t1, t2)""",
    ),
    "nested reductions over different axes": (
        """in x: f32[b, d, s]
t1 = sum[s](x)\nt2 = exp(t1)\nt3 = sum[b, d](t2)
out y: f32[] = t3""",
        """
kernel grid[]
  loop[s]
    t1 += sum[s](x)
  t2 = exp(t1)
  t3 = sum[b, d](t2)""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_default_schedules(name: str) -> None:
    text, expected = SCHEDULES[name]
    lines = str(fuse(parse_graph(HEADS + text))).splitlines()
    kernels = [line for line in lines if line.startswith(("kernel", " "))]
    assert kernels == expected.strip("\n").splitlines()


ROWS = """graph g
axes b=128 c=128 d=64 e=64
in x: f32[b, d]
in wq: f32[d, e]
in wk: f32[d, e]
t3 = contract[d](x, wq)
t4 = contract[d](x, wk)
t5 = rename[b->c](t4)
t6 = contract[e](t3, t5)
t7 = exp(t6)
out y: f32[b, c] = t7
"""
READ = """
kernel grid[b, e]
  loop[d]
    t3 += contract[d](x, wq)
    t4 += contract[d](x, wk)
kernel grid[b, c]
  loop[e]
    t5 = rename[b->c](t4)
    t6 += contract[e](t3, t5)
  t7 = exp(t6)"""
STORED = """
kernel grid[e]
  loop[d]
    t3 += contract[d](x, wq)
    t4 += contract[d](x, wk)
  t5 = rename[b->c](t4)
kernel call
  t6 = contract[e](t3, t5)
kernel grid[b, c]
  t7 = exp(t6)"""


@pytest.mark.parametrize(("called", "expected"), [(-1, READ), (6, STORED)], ids=["read", "stored"])
def test_a_view_is_made_where_it_is_read_unless_a_library_reads_it(called: int, expected: str) -> None:
    lines = str(fuse(parse_graph(ROWS), library=lambda graph, value: value == called)).splitlines()
    kernels = [line for line in lines if line.startswith(("kernel", " "))]
    assert kernels == expected.strip("\n").splitlines()


def test_a_step_that_no_output_needs_is_left_out() -> None:
    graph = parse_graph("graph g\naxes k=4\nin x: f32[k]\nt1 = exp(x)\nt2 = neg(x)\nout y: f32[k] = t2")
    assert [step.op for step in fuse(graph).graph.steps] == ["neg"]


# -- what a muGraph computes: program by program, turn by turn, on tiles of one position


@pytest.mark.parametrize(
    ("dtypes", "called"),
    [
        ("f32 f32", True),
        ("f8e4m3 f8e4m3", True),
        ("bool f32", False),
        ("bool bool", False),
        ("i64 f32", False),
    ],
)
def test_a_library_multiplies_floats_alone(dtypes, called) -> None:
    x, w = dtypes.split()
    ports = f"in x: {x}[m, k]\nin w: {w}[k, n]"
    text = f"graph g\naxes m=4 k=5 n=6\n{ports}\nt2 = contract[k](x, w)\nout y: f32[m, n] = t2\n"
    assert is_matmul(parse_graph(text), 2) == called
