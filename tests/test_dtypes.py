"""The table of dtypes agrees with torch, and its names are told apart."""

import pytest

from superopt.dtypes import DTYPES, Dtype, dtype_named, torch_dtypes


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_bytes_and_kind_are_those_of_torch(dtype: Dtype) -> None:
    known = torch_dtypes()[dtype.name]
    assert str(known) == f"torch.{dtype.torch}"
    assert dtype.bytes == known.itemsize
    assert (dtype.kind in ("float", "narrow")) == known.is_floating_point
    assert (dtype.kind == "narrow") == (known.is_floating_point and known.itemsize == 1)
    assert (dtype.kind == "mask") == (dtype.name == "bool")


def test_every_name_is_of_one_dtype() -> None:
    names = [name for one in DTYPES.values() for name in {one.name, one.torch, *one.others}]
    assert len(names) == len(set(names))
    assert {dtype_named(name) for name in names} == set(DTYPES)
    assert dtype_named("float17") is None
