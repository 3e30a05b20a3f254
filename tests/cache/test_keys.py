from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.cache import KINDS, PARTS, Kind, key_of, program_text, versions
from superopt.errors import InputError
from superopt.ir import fuse, parse_graph

GRAPH = """\
graph scale
axes m=16 k=4096
in x: f16[m, k]
in w: f16[k]
t2 = mul(x, w)
out y: f16[m, k] = t2
"""


@dataclass(frozen=True)
class Options:
    seed: int = 0
    tiles: tuple[int, ...] = (1, 2)


def key_parts(kind: Kind, **other: Any) -> dict[str, Any]:
    return {name: f"some {name}" for name in PARTS[kind]} | other


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_is_needed_and_changes_the_digest(kind: Kind) -> None:
    parts = key_parts(kind)
    key = key_of(kind, **parts)
    assert key == key_of(kind, **dict(reversed(parts.items())))
    assert key.parts == parts
    for name in PARTS[kind]:
        assert key_of(kind, **parts | {name: "other"}).digest != key.digest
        with pytest.raises(InputError, match=rf"key of a {kind} needs {name}"):
            key_of(kind, **{other: value for other, value in parts.items() if other != name})
        for empty in ("", None):
            with pytest.raises(InputError, match=f"nothing in {name}"):
                key_of(kind, **parts | {name: empty})


def test_kinds_have_different_keys_of_the_same_parts() -> None:
    names = {name for kind in KINDS for name in PARTS[kind]}
    assert len({key_of(kind, **dict.fromkeys(PARTS[kind], "x")).digest for kind in KINDS}) == len(KINDS)
    assert names >= {"program", "device", "options", "superopt", "torch", "compiler"}


def test_an_unknown_part_or_kind_is_refused() -> None:
    with pytest.raises(InputError, match="has no part seed"):
        key_of("plan", **key_parts("plan", seed=1))
    with pytest.raises(InputError, match="no kind of record is named 'plans'"):
        key_of("plans", program="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pair",
    [
        (Options(), Options(seed=1)),
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": None}, {}),
        (["ab", "c"], ["a", "bc"]),
        ({"a": {"b": 1}}, {"a": 1, "b": 1}),
        ("[1]", [1]),
    ],
)
def test_different_options_have_different_keys(pair: tuple[Any, Any]) -> None:
    first, second = (key_of("plan", **key_parts("plan", options=one)) for one in pair)
    assert first.digest != second.digest


def test_a_dataclass_is_the_mapping_of_its_fields() -> None:
    first = key_of("plan", **key_parts("plan", options=Options()))
    assert first == key_of("plan", **key_parts("plan", options={"tiles": [1, 2], "seed": 0}))


def test_a_key_as_a_part_is_its_digest() -> None:
    inner = key_of("plan", **key_parts("plan"))
    assert key_of("search", **key_parts("search", options=inner)).parts["options"] == inner.digest


@pytest.mark.parametrize("bad", [Fraction(1, 2), object(), {1: 2}, {1}, b"x", float("nan"), [float("inf")]])
def test_what_may_print_alike_is_refused(bad: Any) -> None:
    with pytest.raises(InputError, match="options"):
        key_of("plan", **key_parts("plan", options=bad))


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.none(), min_size=1))
def test_parts_come_back_as_given(options: dict[str, Any]) -> None:
    assert key_of("plan", **key_parts("plan", options=options)).parts["options"] == options


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m=16", "m=17"),
        ("x: f16[m, k]", "x: f32[m, k]"),
        ("x: f16[m, k]", "x: f16[k, m]"),
        ("x: f16[m, k]", "x: f16[m, k] strides(1, 16)"),
        ("mul(x, w)", "div(x, w)"),
        ("mul(x, w)", "div(w, x)"),
    ],
)
def test_the_text_of_a_program_is_all_of_it(old: str, new: str) -> None:
    assert old in GRAPH
    first, second = parse_graph(GRAPH), parse_graph(GRAPH.replace(old, new, 1))
    assert program_text(first) != program_text(second)
    assert program_text(fuse(first)) != program_text(fuse(second))


def test_the_text_of_a_program_leaves_out_its_name_and_open_sizes() -> None:
    graph, other = parse_graph(GRAPH), parse_graph(GRAPH.replace("graph scale", "graph other"))
    larger = parse_graph(GRAPH.replace("m=16", "m=32"))
    assert program_text(graph) == program_text(other)
    assert program_text(graph, open_axes=["m"]) == program_text(larger, open_axes=["m"])
    assert program_text(graph, open_axes=["m"]).startswith("axes m=* k=4096\n")
    assert program_text(graph) != program_text(fuse(graph))
    with pytest.raises(InputError, match="open axis 'q': the program has only m, k"):
        program_text(graph, open_axes=["q"])
    with pytest.raises(InputError, match="str has no canonical text"):
        program_text("a\nb")  # type: ignore[arg-type]


def test_versions_are_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION", raising=False)
    plain = versions()
    assert set(plain) == {"superopt", "torch", "compiler"}
    assert all(plain.values())
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert versions()["compiler"] != plain["compiler"]
