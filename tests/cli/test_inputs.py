import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.cli.inputs import TensorInput, make_inputs, parse_dtype, parse_inputs
from superopt.dtypes import DTYPES
from superopt.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("   ", ()),
        ("f16[16,4096]", (TensorInput("f16", (16, 4096)),)),
        ("f16[16, 4096]  bf16[8]", (TensorInput("f16", (16, 4096)), TensorInput("bf16", (8,)))),
        ("f32[2],f32[3]", (TensorInput("f32", (2,)), TensorInput("f32", (3,)))),
        ("f32[2][3]", None),
        ("f32[2]f32[3]", (TensorInput("f32", (2,)), TensorInput("f32", (3,)))),
        ("f32[]", (TensorInput("f32", ()),)),
        ("i64[0,5] bool[1]", (TensorInput("i64", (0, 5)), TensorInput("bool", (1,)))),
        ("0.5 -3 1e-6 True None", (0.5, -3, 1e-6, True, None)),
        ("f32[1_024]", (TensorInput("f32", (1024,)),)),
        ("\tf32[4]\n", (TensorInput("f32", (4,)),)),
        ("float16[4]", (TensorInput("f16", (4,)),)),
        ("torch.bfloat16[4] Float32[2]", (TensorInput("bf16", (4,)), TensorInput("f32", (2,)))),
    ],
)
def test_inputs_are_read(text: str, expected: tuple[object, ...] | None) -> None:
    if expected is None:
        with pytest.raises(InputError):
            parse_inputs(text)
    else:
        assert parse_inputs(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f17[2]", "unknown dtype 'f17', did you mean f1"),
        ("quux[2]", "(known: f64, f32, f16, bf16,"),
        ("f16[2", "a bracket is not closed"),
        ("f16 2]", "a bracket is not closed"),
        ("[2,3]", "cannot read '[2,3]'"),
        ("f16", "f16 has no sizes; write f16[16,4096], or f16[] for a single number"),
        ("f16[-2]", "size -2 is negative"),
        ("f16[2.5]", "'2.5' is not a size"),
        ("f16[M]", "'M' is not a size"),
        ("f16[2,,3]", "a size is missing"),
        ("f16[9999999999999999999999]", "larger than any tensor can be"),
        ("f64[4611686018427387904]", "larger than any tensor can be"),
        ("f16[4294967296,4294967296]", "larger than any tensor can be"),
        ("1+2", "unknown dtype '1+2'"),
    ],
)
def test_each_mistake_has_its_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_inputs(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 2**14), max_size=4))))
def test_parse_of_print(shapes: list[tuple[str, list[int]]]) -> None:
    items = tuple(TensorInput(dtype, tuple(shape)) for dtype, shape in shapes)
    assert parse_inputs(" ".join(map(str, items))) == items


@given(st.text(alphabet="f16b[]0.,- -xTrue", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        parse_inputs(text)


def test_known_dtypes_pass() -> None:
    assert [parse_dtype(name) for name in DTYPES] == list(DTYPES)


def test_tensors_have_no_data() -> None:
    huge, empty, number = make_inputs(parse_inputs("f16[1000000,1000000,1000] f32[0,7] 0.5"))
    assert (huge.device.type, tuple(huge.shape)) == ("meta", (1000000, 1000000, 1000))
    assert tuple(empty.shape) == (0, 7)
    assert number == 0.5
