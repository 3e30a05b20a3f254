"""Stages of chunks by kernels of ours: as PyTorch computes them, where they lie, whatever the layout."""

from itertools import product

import pytest
import torch
from torch import Tensor

from superopt.backend.joint.chunks import own
from superopt.backend.joint.chunks.own import own_between, own_product
from superopt.backend.joint.chunks.stages import Between, Multiply, Operand
from superopt.codegen.errors import NoCompilerError
from superopt.ir import parse_graph

M, N, K = 24, 70, 33
SIZES = {"m": M, "n": N, "k": K}
APART = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

LOSS = """
graph loss
axes m={m} n={n}
in label: i64[m]
in logits: f32[{order}]
t2 = max[n](logits)
t3 = sub(logits, t2)
t4 = exp(t3)
t5 = sum[n](t4)
t6 = log(t5)
t7 = sub(t3, t6)
t8 = index[n]()
t9 = eq(t8, label)
t10 = contract[n](t9, t7)
t11 = sum[m](t10)
t12 = exp(t7)
t13 = sub(t12, t9)
out gradient: f32[{order}] = t13
out loss: f32[] = t11
"""


def multiply(left: str, right: str, made: str, *, adds: bool) -> Multiply:
    names = zip(("left", "right", "made"), (left, right, made), strict=True)
    operands = (Operand(name, tuple(axes)) for name, axes in names)
    return Multiply(*operands, summed=("k",), adds=adds)  # type: ignore[misc]


def drawn(axes: str, sizes: dict[str, int], dtype: torch.dtype) -> Tensor:
    return torch.randn([sizes[one] for one in axes]).to(dtype)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("orders", list(product(("mk", "km"), ("kn", "nk"), ("mn", "nm"))), ids="-".join)
def test_products(orders: tuple[str, str, str], dtype: torch.dtype, adds: bool) -> None:
    torch.manual_seed(0)
    step = multiply(*orders, adds=adds)
    stage = None
    for m in (M, 1, 50):  # the last chunk may be a shorter one
        sizes = {**SIZES, "m": m}
        left, right = (drawn(axes, sizes, dtype) for axes in orders[:2])
        made = drawn(orders[2], sizes, torch.float32 if adds else dtype)
        wanted = torch.einsum(f"{orders[0]},{orders[1]}->{orders[2]}", left.double(), right.double())
        wanted = wanted + made.double() if adds else wanted
        stage = stage or own_product(step, sizes, (left, right, made))
        assert stage is not None
        stage((left, right, made) if adds else (left, right), (made,))
        assert float((made - wanted).abs().max()) <= APART[dtype] * float(wanted.abs().max())


def test_products_of_several_matrices() -> None:
    torch.manual_seed(0)
    step = multiply("bmk", "bkn", "bmn", adds=False)
    left, right, made = torch.randn(3, M, K), torch.randn(3, K, N), torch.empty(3, M, N)
    stage = own_product(step, {**SIZES, "b": 3}, (left, right, made))
    assert stage is not None
    stage((left, right), (made,))
    torch.testing.assert_close(made, left @ right, rtol=1e-4, atol=1e-4)


def test_rows_that_lie_apart_are_left_to_the_library() -> None:
    step = multiply("mk", "kn", "mn", adds=False)
    spread = torch.empty(M, N, 2)[..., 0]
    assert own_product(step, SIZES, (torch.randn(M, K), torch.randn(K, N), spread)) is None


def test_nothing_is_ours_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise NoCompilerError("no compiler")

    monkeypatch.setattr(own, "CppMuGraph", fails)
    step = multiply("mk", "kn", "mn", adds=False)
    assert own_product(step, SIZES, (torch.randn(M, K), torch.randn(K, N), torch.empty(M, N))) is None


def expected(logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of a loss and the loss, with the rows first."""
    normal = logits.double().log_softmax(1)
    picked = torch.nn.functional.one_hot(label, logits.shape[1]).double()
    return normal.exp() - picked, (normal * picked).sum()


@pytest.mark.parametrize("order", ["m, n", "n, m"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_lies_between_is_written_where_it_reads(order: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    n = 1500  # several tiles
    step = Between(parse_graph(LOSS.format(m=M, n=n, order=order)), ("gradient",))
    stage = None
    for m in (M, 1, 40):
        rows = torch.randn(m, n).to(dtype)
        label = torch.randint(0, n, (m,))
        gradient, loss = expected(rows, label)
        place = rows.clone() if order == "m, n" else rows.t().contiguous()
        stage = stage or own_between(step, {"m": m}, (label, place), {"gradient": place})
        assert stage is not None
        made = torch.empty(())
        stage((label, place), (place, made))
        found = place if order == "m, n" else place.t()
        assert float((found - gradient).abs().max()) <= (2e-5 if dtype == torch.float32 else 4e-3)
        assert float(made) == pytest.approx(float(loss), rel=1e-4)


def test_masks_in_other_dtypes_are_left_to_inductor() -> None:
    """A number 0 that is multiplied by infinity is none; a mask that is 0 selects nothing."""
    graph = parse_graph(
        "graph g\naxes m=4\nin keep: bool[m]\nin x: f32[m]\nt2 = mul(keep, x)\nout y: f32[m] = t2\n"
    )
    x, step = torch.randn(4), Between(graph, ("y",))
    assert own_between(step, {}, (torch.ones(4), x), {"y": x}) is None
    assert own_between(step, {}, (torch.ones(4, dtype=torch.bool), x), {"y": x}) is not None


def test_what_is_read_again_is_left_to_inductor() -> None:
    text = (
        "graph g\naxes m=4 n=4\nin x: f32[m, n]\nt1 = exp(x)\nt2 = rename[m->n, n->m](x)\nt3 = add(t1, t2)\n"
    )
    text += "out y: f32[m, n] = t3\n"
    x = torch.randn(4, 4)
    step = Between(parse_graph(text), ("y",))
    assert own_between(step, {}, (x,), {"y": x}) is None
    assert own_between(step, {}, (x,), {"y": torch.empty(4, 4)}) is not None
