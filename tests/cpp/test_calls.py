"""Library calls between kernels of our own, and outputs that no kernel computes."""

import pytest
import torch

from superopt.backend.joint.memory.peak import peak_bytes
from superopt.codegen.cpp import CppMuGraph
from superopt.codegen.errors import UnsupportedError
from superopt.codegen.forms import Forms
from superopt.errors import InputError
from superopt.ir import fuse, parse_graph, parse_mugraph
from superopt.trace import run_graph

TEXT = """
graph calls
axes m=7 k=33 n=17
in x: f32[m, k]
in w: f32[k, n]
kernel grid[m, k]
  t2 = exp(x)
kernel call
  t3 = contract[k](t2, w)
kernel grid[m, n]
  t4 = neg(t3)
out y: f32[m, n] = t4
"""


def test_a_call_runs_in_torch() -> None:
    x, w = torch.randn(7, 33), torch.randn(33, 17)
    run = CppMuGraph(parse_mugraph(TEXT), flags=("-O1",))
    assert len(run.sources) == 2
    torch.testing.assert_close(run(x=x, w=w)["y"], -(x.exp() @ w))
    x = torch.randn(3, 33)
    torch.testing.assert_close(run(x=x, w=w)["y"], -(x.exp() @ w))


def test_a_call_of_something_else() -> None:
    text = TEXT.replace("kernel grid[m, n]\n  t4 = neg", "kernel call\n  t4 = neg")
    with pytest.raises(UnsupportedError, match="a library call of neg"):
        CppMuGraph(parse_mugraph(text))


def test_a_call_that_leaves() -> None:
    text = TEXT.replace("kernel grid[m, n]\n  t4 = neg(t3)\n", "").replace(
        "f32[m, n] = t4", "bf16[n, m] = t3"
    )
    x, w = torch.randn(7, 33), torch.randn(33, 17)
    got = CppMuGraph(parse_mugraph(text), flags=("-O1",))(x=x, w=w)["y"]
    assert got.is_contiguous()
    torch.testing.assert_close(got, (x.exp() @ w).t().bfloat16())


def test_a_product_that_leaves_is_not_copied() -> None:
    """Before: what a library made was copied, and all that kernels handed on was held to the end."""
    text = TEXT.replace("m=7 k=33 n=17", "m=256 k=512 n=512")
    text += "out p: f32[m, n] = t3\nout q: f32[(m n)] = t3\n"
    x, w = torch.randn(256, 512), torch.randn(512, 512)
    run = CppMuGraph(parse_mugraph(text), flags=("-O1",))
    made = run(x=x, w=w)
    assert peak_bytes(lambda: run(x=x, w=w)) == 3 * made["p"].nbytes  # t2 makes room for the copy
    torch.testing.assert_close(made["p"], x.exp() @ w, rtol=1e-4, atol=1e-3)
    assert torch.equal(made["q"], made["p"].flatten())
    assert torch.equal(made["y"], -made["p"])
    assert len({one.data_ptr() for one in made.values()}) == 3
    assert not any(one._is_view() for one in made.values())


LEFT = """
graph left
axes m=64 k=48 n=96
in x: bf16[m, k]
in w: bf16[k, n]
in v: bf16[n, k]
{rounded}
kernel grid[m, n]
  loop[k]
    t3 += contract[k](x, w)
  t4 = tanh(t3)
kernel {second}
  loop[n]
    t5 += contract[n](t4, v)
out hidden: {hidden} = t4
out y: f32[m, k] = t5
"""


@pytest.mark.parametrize(
    ("hidden", "rounded", "between"),
    [
        ("bf16[m, n]", "round t4 to bf16", 0),
        ("f32[m, n]", "", 0),
        ("bf16[m, n]", "", 4),
        ("bf16[n, m]", "round t4 to bf16", 2),
        ("bf16[(m n)]", "round t4 to bf16", 2),
        ("bf16[m, n, 1]", "round t4 to bf16", 2),
    ],
)
def test_a_result_that_later_kernels_read_lies_in_memory_once(
    hidden: str, rounded: str, between: int
) -> None:
    torch.manual_seed(0)
    x, w, v = (torch.randn(shape).bfloat16() for shape in ((64, 48), (48, 96), (96, 48)))
    text = LEFT.format(hidden=hidden, rounded=rounded, second="grid[m, k]").replace("\n\n", "\n")
    run = CppMuGraph(parse_mugraph(text), flags=("-O1",))
    for _ in range(2):
        made = run(x=x, w=w, v=v)
    t4 = (x.float() @ w.float()).tanh()
    left = t4.t() if hidden == "bf16[n, m]" else t4
    torch.testing.assert_close(
        made["hidden"].flatten(), left.to(made["hidden"].dtype).flatten(), rtol=0.02, atol=0.02
    )
    read = made["hidden"].float() if not between else t4.bfloat16().float() if rounded else t4
    torch.testing.assert_close(made["y"], read @ v.float(), rtol=1e-2, atol=1e-2)
    taken = sum(one.nbytes for one in made.values()) + between * 64 * 96
    assert peak_bytes(lambda: run(x=x, w=w, v=v)) == taken


def test_a_library_reads_a_result() -> None:
    text = LEFT.format(hidden="f32[m, n]", rounded="", second="call").replace("  loop[n]\n  ", "")
    text = (
        text.replace("+=", "=").replace("  loop[k]\n    t3 =", "  loop[k]\n    t3 +=").replace("\n\n", "\n")
    )
    x, w, v = (torch.randn(shape).bfloat16() for shape in ((64, 48), (48, 96), (96, 48)))
    made = CppMuGraph(parse_mugraph(text), flags=("-O1",))(x=x, w=w, v=v)
    torch.testing.assert_close(made["y"], made["hidden"] @ v.float(), rtol=1e-3, atol=1e-3)


def test_an_input_that_leaves() -> None:
    text = """
graph same
axes m=3 n=2
in x: f32[m, n]
t1 = neg(x)
out y: f32[(n m)] = x
out z: f32[m, n] = t1
"""
    x = torch.randn(3, 2)
    made = CppMuGraph(fuse(parse_graph(text)), flags=("-O1",))(x=x)
    assert torch.equal(made["y"], x.t().reshape(-1))
    assert torch.equal(made["z"], -x)


TWO = """
graph two
axes m=3 n=4
in x: f32[m, n]
in y: f32[m, n]
t2 = neg(y)
t3 = add(x, y)
out a: f32[m, n] = t3
out b: f32[m, n] = t2
"""


def test_inputs_and_outputs_in_order() -> None:
    run = CppMuGraph(fuse(parse_graph(TWO)), flags=("-O1",))
    assert (run.inputs, run.outputs) == (("x", "y"), ("a", "b"))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for one, other in ((x, y), (x.t().contiguous().t(), y), (torch.randn(5, 4), torch.randn(5, 4))):
        a, b = run.in_order((one, other))
        assert torch.equal(a, one + other)
        assert torch.equal(b, -other)
        assert all(
            torch.equal(*pair) for pair in zip(run.prepared((one, other))((one, other)), (a, b), strict=True)
        )


def test_what_was_prepared_serves_nothing_else() -> None:
    run = CppMuGraph(fuse(parse_graph(TWO)), flags=("-O1",))
    x = torch.randn(3, 4)
    run.in_order((x, x))
    for wrong in (x.double(), x.to("meta"), x[0], torch.randn(3, 5)):
        with pytest.raises(InputError, match="two"):
            run.in_order((x, wrong))


class Named(torch.nn.Parameter):
    """A parameter of a class of its own, as libraries have them to note what it is for."""


class Counted(torch.nn.Parameter):
    """A parameter that sees each operator that reads it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_parameter_of_another_class_is_read_if_it_computes_as_others_do() -> None:
    """Before: all were refused, and a plan that met one was given up."""
    run = CppMuGraph(fuse(parse_graph(TWO)), flags=("-O1",))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    a, _ = run.in_order((x, Named(y)))
    assert torch.equal(a, x + y)
    assert type(a) is torch.Tensor
    with pytest.raises(InputError, match="Counted"):
        run.in_order((x, Counted(y)))


def test_other_threads_are_seen() -> None:
    x, y = torch.randn(300, 400), torch.randn(300, 400)
    run, before = CppMuGraph(fuse(parse_graph(TWO)), flags=("-O1",)), torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert torch.equal(run.in_order((x, y))[0], x + y)
    finally:
        torch.set_num_threads(before)


def test_calls_leave_no_gradient() -> None:
    x, w = torch.randn(7, 33, requires_grad=True), torch.randn(33, 17, requires_grad=True)
    assert not CppMuGraph(parse_mugraph(TEXT), flags=("-O1",))(x=x, w=w)["y"].requires_grad


IN_ANOTHER_ORDER = """graph f
axes m=8 k=16 n=512
in x: f32[m, k]
in b: f32[n, k]
in c: f32[k, n]
kernel call
  t3 = contract[k](x, b)
kernel grid[m, k]
  loop[n]
    t4 = sigmoid(t3)
    t5 += contract[n](t4, c)
out out: f32[m, k] = t5
"""
INTO_A_CALL = """graph f
axes m=8 k=16 n=512
in x: f32[m, n]
in c: f32[k, n]
kernel grid[m, n]
  t2 = sigmoid(x)
kernel call
  t3 = contract[n](t2, c)
out out: f32[k, m] = t3
"""


@pytest.mark.parametrize("text", [IN_ANOTHER_ORDER, INTO_A_CALL])
def test_kernels_and_libraries_agree_on_how_values_lie(text: str) -> None:
    mugraph = parse_mugraph(text)
    graph = mugraph.graph
    torch.manual_seed(0)
    tensors = {port.name: torch.randn(graph.shape(port)) for port in graph.inputs}
    made = CppMuGraph(mugraph, flags=("-O1",))(**tensors)["out"]
    torch.testing.assert_close(made.double(), run_graph(graph, tensors)["out"], rtol=1e-4, atol=1e-5)


def test_guards_are_made_for_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: calls with one tensor twice, or with and without gradients by turns, made one each."""
    made, guard = [], torch._C._dynamo.guards.TensorGuards

    def making(*tensors: torch.Tensor, **more: object) -> object:
        made.append(tensors)
        return guard(*tensors, **more)

    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", making)
    x, y, learned = torch.rand(3), torch.rand(3), torch.rand(3, requires_grad=True)
    forms = Forms([x, y])
    assert all(forms.same(given) for _ in range(9) for given in ((x, y), (y, x)))
    assert len(made) == 1
    assert all(forms.same([x, x]) for _ in range(99))
    assert len(made) == 1
    assert all(forms.same(given) for _ in range(99) for given in ((x, y), (x, learned)))
    assert len(made) < 20
    assert not forms.same([x, torch.rand(4)])
    assert not forms.same([x, x.double()])
