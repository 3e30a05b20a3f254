"""Products by kernels of ours are those of matrices that lie in memory in any way."""

import pytest
import torch
from torch import Tensor

from superopt.backend.joint.turns import products
from superopt.backend.joint.turns.products import Matrices, OwnProduct
from superopt.backend.joint.turns.stages import Multiply, Operand

AXES = {"left": ("m", "k"), "right": ("k", "n"), "made": ("m", "n")}


def lying(sizes: dict[str, int], axes: tuple[str, ...], *, turned: bool, apart: int) -> Tensor:
    """Return a matrix whose lines lie apart, with other numbers between them."""
    order = axes[::-1] if turned else axes
    whole = torch.randn(sizes[order[0]], sizes[order[1]] + apart)
    made = whole[:, : sizes[order[1]]]
    return made.t() if turned else made


@pytest.mark.slow
@pytest.mark.parametrize("turned", range(8))
def test_products_of_all_layouts(turned: int) -> None:
    torch.manual_seed(turned)
    bits = [bool(turned >> bit & 1) for bit in range(3)]
    step = Multiply(*(Operand(name, axes) for name, axes in AXES.items()), summed=("k",))  # type: ignore[misc]
    own = None
    for m, n, k in ((24, 70, 33), (24, 70, 33), (5, 70, 33), (24, 70, 1), (1, 1, 9)):
        sizes = {"m": m, "n": n, "k": k}
        left, right, made = (
            lying(sizes, axes, turned=bit, apart=3) for axes, bit in zip(AXES.values(), bits, strict=True)
        )
        matrices = Matrices(step, left, right, made)
        own = own or OwnProduct(matrices)
        whole = made.as_strided((made.untyped_storage().nbytes() // 4,), (1,), 0)
        inside = torch.zeros_like(whole, dtype=torch.bool)
        inside.as_strided(made.shape, made.stride(), 0).fill_(True)
        outside = whole[~inside]
        matrices.multiply(own)
        torch.testing.assert_close(made, (left.double() @ right.double()).float(), rtol=1e-4, atol=1e-4)
        assert torch.equal(whole[~inside], outside)  # nothing else is written
        matrices.multiply(own, again=True)
        torch.testing.assert_close(made, 2 * (left.double() @ right.double()).float(), rtol=1e-4, atol=1e-4)


def test_other_layouts_are_left_to_the_library() -> None:
    step = Multiply(*(Operand(name, axes) for name, axes in AXES.items()), summed=("k",))  # type: ignore[misc]
    left, right, made = torch.randn(4, 6), torch.randn(6, 5), torch.empty(4, 5)
    Matrices(step, left, right, made).multiply()
    torch.testing.assert_close(made, left @ right)
    spread = torch.empty(4, 5, 2)[..., 0]
    Matrices(step, left, right, spread).multiply()
    torch.testing.assert_close(spread, left @ right)


@pytest.mark.parametrize("sizes", [(200, 70, 33), (9, 300, 40), (9, 40, 300), (1, 1, 1)])
@pytest.mark.parametrize("made_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("several", [False, True])
def test_products_are_converted_in_parts(
    sizes: tuple[int, int, int],
    made_dtype: torch.dtype,
    several: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before: operands and results of another dtype were converted whole: more memory than Inductor's."""
    monkeypatch.setattr(products, "_PART_BYTES", 1 << 14)
    torch.manual_seed(0)
    batch = ("b",) * several
    operands = [Operand(name, (*batch, *axes)) for name, axes in AXES.items()]
    step = Multiply(*operands, summed=("k",))  # type: ignore[misc]
    m, n, k = sizes
    left, right = torch.randn(*[2] * several, m, k).bfloat16(), torch.randn(*[2] * several, k, n)
    made = torch.empty(*[2] * several, m, n, dtype=made_dtype)
    matrices = Matrices(step, left, right, made, torch.bfloat16)
    wanted = left.double() @ right.bfloat16().double()
    apart = 2e-2 * float(wanted.abs().max())
    for times in (1, 2):
        matrices.multiply(again=times > 1)
        assert float((made.double() - times * wanted).abs().max()) <= times * apart
