"""Machine code: what a compiled kernel is made of, read from its PTX and its machine code.

The hot loop is the one with the most matrix instructions, or else with the most loads; a loop is what lies
between a branch backwards and where it leads. Where the program has a loop within a loop, the outer one
counts, with as many turns of the inner one as it makes.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["MachineCode", "read_machine_code"]

_MATRIX = re.compile(r"\b(wgmma)\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)\.(\w+)\.(\w+)\.(\w+)\b")
_OLD_MATRIX = re.compile(r"\b(mma)\.sync\.aligned\.(m\d+n\d+k\d+)\.row\.col\.(\w+)\.(\w+)\.(\w+)\.(\w+)\b")
_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", re.MULTILINE)
_BRANCH = re.compile(r"^(?:@!?U?P\d+ )?BRA(?:\.\w+)*\s+(?:\S+, )*0x([0-9a-f]+)")
_PREDICATE = re.compile(r"^@!?U?P[T\d]+\s+")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The instructions of a kernel, by what they do; the hot loop is counted for a warp and one turn."""

    # Products in the whole kernel, by instruction, shape and type.
    matrix: dict[str, int] = field(default_factory=dict)
    loop: int = 0  # instructions of the hot loop; 0 where there is none
    loop_matrix: int = 0
    loop_copies: int = 0  # asynchronous, from global to shared memory
    loop_tensor_copies: int = 0  # copies of whole tiles by a tensor descriptor
    loop_loads: int = 0  # loads that a register waits for
    loop_barriers: int = 0
    loop_shuffles: int = 0
    loop_divides: int = 0  # divisions of integers, and calls

    @property
    def types(self) -> frozenset[str]:
        """The types of the operands of matrix instructions."""
        return frozenset(name.rpartition(".")[2] for name in self.matrix)


def read_machine_code(ptx: str, sass: str, *, inner_turns: int = 0) -> MachineCode:
    """Return what a kernel is made of, from its PTX and the disassembly of its machine code.

    `inner_turns` says how many turns a loop within a loop makes, 0 that the program has none.
    """
    matrix = Counter(f"{one[1]}.{one[2]}.{one[4]}" for one in _MATRIX.finditer(ptx))
    matrix += Counter(f"{one[1]}.{one[2]}.{one[4]}" for one in _OLD_MATRIX.finditer(ptx))
    loop = _hot_loop([(int(one[1], 16), one[2]) for one in _LINE.finditer(sass)], inner_turns)
    names = [_PREDICATE.sub("", text).split(" ", 1)[0] for text in loop]
    return MachineCode(
        dict(sorted(matrix.items())),
        loop=len(loop),
        loop_matrix=_count(names, "HMMA", "HGMMA", "IMMA", "QGMMA", "BGMMA"),
        loop_copies=_count(names, "LDGSTS"),
        loop_tensor_copies=_count(names, "UTMALDG"),
        loop_loads=_count(names, "LDG"),
        loop_barriers=_count(names, "BAR"),
        loop_shuffles=_count(names, "SHFL"),
        loop_divides=sum(name.startswith(("I2F", "CALL")) for name in names),
    )


def _hot_loop(lines: list[tuple[int, str]], inner_turns: int) -> list[str]:
    """Return the instructions of the hot loop; none where nothing branches backwards."""
    branches = [(address, _BRANCH.match(text)) for address, text in lines]
    found = [range(int(one[1], 16), end + 1) for end, one in branches if one and int(one[1], 16) < end]
    texts = {one: [text for at, text in lines if at in one] for one in found}
    at_work = [one for one in texts if any(_heat(texts[one])[:2])]  # others wait for a barrier
    innermost = [one for one in at_work if not any(_lies_in(other, one) for other in at_work)]
    if not innermost:
        return []
    hot = max(innermost, key=lambda one: _heat(texts[one]))
    around = [one for one in at_work if _lies_in(hot, one)]
    if not (inner_turns and around):
        return texts[hot]
    return texts[min(around, key=len)] + texts[hot] * (inner_turns - 1)


def _lies_in(inner: range, outer: range) -> bool:
    return inner != outer and outer.start <= inner.start and inner.stop <= outer.stop


def _heat(loop: list[str]) -> tuple[int, int, int]:
    names = [_PREDICATE.sub("", text).split(" ", 1)[0] for text in loop]
    return _count(names, "HMMA", "HGMMA", "IMMA"), _count(names, "LDG", "LDGSTS", "UTMALDG"), -len(loop)


def _count(names: list[str], *kinds: str) -> int:
    return sum(name.split(".")[0] in kinds for name in names)
