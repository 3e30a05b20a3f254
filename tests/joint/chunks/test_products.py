"""Products of a chunk are those of matrices that lie in memory in any way, in any dtype."""

import pytest
import torch

from superopt.backend.joint.chunks import products
from superopt.backend.joint.chunks.products import Matrices
from superopt.backend.joint.chunks.stages import Multiply, Operand

AXES = {"left": ("m", "k"), "right": ("k", "n"), "made": ("m", "n")}


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
