"""The emitted source, to be read: `pytest tests/triton --update-golden` writes it anew."""

import re
from pathlib import Path

import pytest

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.txt")))
def test_golden(name, sources_of, update_golden):
    found = "\n\n".join(source.text for source in sources_of(name))
    path = GOLDEN / f"{name}.py"
    if update_golden:
        path.write_text(found)
    assert found == path.read_text(), "run `pytest tests/triton --update-golden` where this is meant"


# For each kernel, how often it reads and writes each tensor: outside its loops and inside each of them.
MEMORY = {
    "rmsnorm_linear": [("g 0 1, w 0 1, x 0 1", "out")],
    "gated_mlp": [("w1 0 1, w2 0 1, x 0 1", "out")],
    "gqa_prefill": [("k 0 1, q 1 0, v 0 1", "out")],
    "gqa_decode": [("k 0 1, q 1 0, v 0 1", "t11, t18, t8"), ("t11 0 1, t18 0 1, t8 0 1", "out")],
    "mla": [("c 0 1, kr 0 1, q 1 0, qr 1 0", "out")],
}


@pytest.mark.parametrize("name", MEMORY)
def test_every_tensor_is_read_once(name, sources_of):
    found = []
    for source in sources_of(name):
        reads: dict[str, list[int]] = {}
        body = re.sub(r"(tl\.\w+)\(\n\s+", r"\1(", source.text)
        for line in body.splitlines():
            for tensor in re.findall(r"tl\.load\((\w+)_ptr", line):
                reads.setdefault(tensor, [0, 0])[line.startswith(" " * 8)] += 1
        walks = re.findall(
            r"\n    for (\w+) in (?:tl\.)?range\((.*), BLOCK_\w+(?:, num_stages=\d)?\):", source.text
        )
        if name == "gqa_prefill":  # one loop goes on where the other ends
            (axis, first), (again, second) = walks
            assert axis == again
            assert first.split(", ")[1] == second.split(", ")[0] == "t0_masked"
        else:
            assert len(walks) == 1
        assert all(inside % len(walks) == 0 for _, inside in reads.values())
        reads = {tensor: [before, inside // len(walks)] for tensor, (before, inside) in reads.items()}
        stores = sorted(re.findall(r"tl\.store\((\w+)_ptr", body))
        loads = ", ".join(f"{name} {before} {inside}" for name, (before, inside) in sorted(reads.items()))
        found.append((loads, ", ".join(stores)))
    assert found == MEMORY[name]


def test_heads_of_a_group_share_their_keys(sources_of):
    split, combined = sources_of("gqa_decode")
    assert split.grid == (("b", 1), ("h", 1), ("s_part", 1))
    assert split.config.tile("g") == 16
    assert ("s_part", 1) not in combined.grid
