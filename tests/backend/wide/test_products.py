"""Products of half-precision matrices in float32: as exact as one rounding, however small the blocks are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import few
from torch import Tensor

from superopt.rivals.wide.calls import wide_groups, wide_product
from superopt.rivals.wide.own import multiply_by_own
from superopt.rivals.wide.products import multiply_wide

UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
LAYOUTS = ("rows", "columns", "strided", "expanded")


def laid(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> Tensor:
    """Return random numbers that lie in memory in some way."""
    made = torch.randn(shape)
    if layout == "columns":
        return made.transpose(-1, -2).contiguous().to(dtype).transpose(-1, -2)
    if layout == "strided":
        return torch.stack([made, made], -1).to(dtype)[..., 0]
    if layout == "expanded":
        return made[..., :1, :].to(dtype).expand(shape)
    return made.to(dtype)


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(0, 150)] * 3),
    several=st.integers(0, 3),
    dtype=st.sampled_from(sorted(UNITS, key=str)),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    summand=st.sampled_from(["none", "row", "whole", "column", "float32"]),
    numbers=st.tuples(*[st.sampled_from([1.0, 0.0, -0.5])] * 2),
    most_bytes=st.sampled_from([1, 1 << 14, 1 << 16, 1 << 22]),
    seed=st.integers(0, 1000),
)
def test_a_product_is_rounded_once(
    sizes: tuple[int, int, int],
    several: int,
    dtype: torch.dtype,
    layouts: tuple[str, str],
    summand: str,
    numbers: tuple[float, float],
    most_bytes: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    rows, length, columns = sizes
    batch = (several,) * (several > 0)
    left = laid((*batch, rows, length), layouts[0], dtype)
    right = laid((*batch, length, columns), layouts[1], dtype)
    shapes = {
        "row": (columns,),
        "whole": (*batch, rows, columns),
        "column": (rows, 1),
        "float32": (1, columns),
    }
    added = torch.randn(shapes[summand]).to(dtype) if summand in shapes else None
    added = added.float() if summand == "float32" and added is not None else added
    beta, alpha = numbers
    made = torch.empty(*batch, rows, columns, dtype=dtype)
    multiply_wide(left, right, made, summand=added, beta=beta, alpha=alpha, most_bytes=most_bytes)
    parts = alpha * (left.double() @ right.double())
    wanted = parts if added is None else parts + beta * added.double()
    size = left.double().abs() @ right.double().abs() + (0 if added is None else added.double().abs())
    assert made.dtype == dtype
    assert made.shape == wanted.shape
    assert bool(((made.double() - wanted).abs() <= UNITS[dtype] * wanted.abs() + 1e-5 * size + 1e-7).all())


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_default_dtype_has_no_part_in_it(default: torch.dtype) -> None:
    """Before: PyTorch refused a product of float32 in memory of another default dtype."""
    left, right, made = torch.ones(3, 40).half(), torch.ones(40, 5).half(), torch.empty(3, 5).half()
    torch.set_default_dtype(default)
    try:
        multiply_wide(left, right, made)
    finally:
        torch.set_default_dtype(torch.float32)
    assert made.tolist() == [[40.0] * 5] * 3


def test_a_summand_that_counts_nothing_is_not_read() -> None:
    left, right = torch.ones(2, 3).bfloat16(), torch.ones(3, 4).bfloat16()
    missing = torch.full((4,), float("nan")).bfloat16()
    assert bool((wide_product(left, right, missing, 0.0, 1.0, 1 << 20) == 3).all())
    assert bool((wide_product(left, right, missing, 0.0, 1.0, 1) == 3).all())


def test_numbers_too_large_for_fp16_are_infinite() -> None:
    left, right = torch.full((2, 300), 300.0).half(), torch.full((300, 2), 300.0).half()
    torch.testing.assert_close(wide_product(left, right, None, 1.0, 1.0, 1 << 20), left @ right)


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("summand", ["none", "row", "whole", "column"])
@pytest.mark.parametrize(
    ("rows", "length", "columns"),
    few([(70, 33, 40), (1, 9, 64), (64, 1, 7), (0, 5, 3), (5, 0, 3)], (70, 33, 40), (5, 0, 3)),
)
@pytest.mark.parametrize("layouts", ["rows columns", "expanded strided"])
def test_without_room_a_kernel_of_ours_multiplies(
    dtype: torch.dtype, summand: str, rows: int, length: int, columns: int, layouts: str
) -> None:
    torch.manual_seed(0)
    first, second = layouts.split()
    for batch in ((), (3,)):
        left, right = (
            laid((*batch, rows, length), first, dtype),
            laid((*batch, length, columns), second, dtype),
        )
        shapes = {"row": (columns,), "whole": (*batch, rows, columns), "column": (rows, 1)}
        added = torch.randn(shapes[summand]).to(dtype) if summand in shapes else None
        made = wide_product(left, right, added, 1.0, 1.0, 1)
        wanted = left.double() @ right.double() + (0 if added is None else added.double())
        apart = UNITS[dtype] * wanted.abs() + 1e-4
        assert bool(((made.double() - wanted).abs() <= apart).all())
        if made.numel() and summand != "column":  # which is left to the library
            assert multiply_by_own(left, right, torch.empty_like(made), added)


def test_a_matrix_times_itself_without_room() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(40, 40).bfloat16()
    made = wide_product(matrix, matrix, matrix, 1.0, 1.0, 1)
    torch.testing.assert_close(made, (matrix.double() @ matrix.double() + matrix.double()).bfloat16())


def test_autocast_around_a_call_changes_nothing() -> None:
    torch.manual_seed(0)
    left, right = torch.randn(40, 300).half(), torch.randn(300, 40).half()
    plain = wide_product(left, right, None, 1.0, 1.0, 1 << 14)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(wide_product(left, right, None, 1.0, 1.0, 1 << 14), plain)


@pytest.mark.parametrize("ends", [(3, 9, 9, 20), (0, 0, 0, 0), (4, 8, 12, 15)])
@pytest.mark.parametrize("dtype", UNITS)
def test_groups_of_rows_have_matrices_of_their_own(ends: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    left, right = laid((20, 33), "columns", dtype), laid((4, 33, 24), "columns", dtype)
    made = wide_groups(left, right, torch.tensor(ends, dtype=torch.int32))
    wanted, begins = torch.zeros(20, 24).double(), (0, *ends)
    for at, (begin, end) in enumerate(zip(begins, ends, strict=False)):
        wanted[begin:end] = left[begin:end].double() @ right[at].double()
    assert bool(((made.double() - wanted).abs() <= UNITS[dtype] * wanted.abs() + 1e-4).all())


@pytest.mark.parametrize("ends", [(3, 9, 9, 20), (0, 0, 0, 0)])
def test_groups_of_what_is_summed(ends: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(7, 20).bfloat16(), torch.randn(20, 9).bfloat16()
    made = wide_groups(left, right, torch.tensor(ends, dtype=torch.int32))
    begins = (0, *ends)
    wanted = [left[:, b:e].double() @ right[b:e].double() for b, e in zip(begins, ends, strict=False)]
    torch.testing.assert_close(made, torch.stack(wanted).bfloat16())
