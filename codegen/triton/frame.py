"""Frame: the code around a kernel's statements: its arguments, and the places of programs and loops."""

from collections.abc import Callable, Sequence
from functools import partial
from textwrap import wrap

from superopt.codegen.statements import Reach
from superopt.codegen.triton.config import Role
from superopt.codegen.triton.source import Argument
from superopt.codegen.triton.text import WIDTH
from superopt.codegen.triton.tiles import Tiles

__all__ = ["Frame"]

_Definition = tuple[str, Callable[[], str]]  # a name, and what prints the line that defines it


class Frame(Tiles):
    """The tiles of a kernel, and the lines around its statements."""

    def arguments(self) -> list[Argument]:
        """Return the arguments that the printed lines mention."""
        tensors = list(dict.fromkeys([*self.program.loads, *self.program.stores]))
        mentioned = frozenset(self.mentions.found)
        found = [Argument(self.pointers[one.name], "tensor", one.name, dtype=one.dtype) for one in tensors]
        found += self.described.values()
        for one in tensors:
            axes = self.memory_axes(one)
            for axis in axes:
                name = self.strides[one.name, axis]
                found.append(Argument(name, "stride", one.name, axis, innermost=axis == axes[-1]))
        found += [Argument(name, "extent", axis=axis) for axis, name in self.extents.items()]
        found += [Argument(name, "block", axis=axis) for axis, name in self.block.items()]
        return [one for one in found if one.name in mentioned]

    def signature(self, arguments: list[Argument]) -> list[str]:
        """Return the lines of the signature."""
        lines = [f"def {self.program.name}("]
        groups: dict[tuple[str, str | None], list[str]] = {}
        for one in arguments:
            group = one.tensor if one.kind == "stride" else None
            text = f"{one.name}: tl.constexpr" if one.kind == "block" else one.name
            groups.setdefault((one.kind, group), []).append(text)
        for members in groups.values():
            row = ""
            for text in members:
                if row and len(row) + len(text) > 100:
                    lines.append(f"    {row.rstrip()}")
                    row = ""
                row += f"{text}, "
            lines.append(f"    {row.rstrip()}")
        return [*lines, "):"]

    def docstring(self) -> list[str]:
        """Return the lines that say which tensors the kernel reads and makes."""
        read = ", ".join(f"{one.name}[{', '.join(one.axes)}]" for one in self.program.loads)
        made = ", ".join(dict.fromkeys(f"{one.name}[{', '.join(one.axes)}]" for one in self.program.stores))
        lines = wrap(f'"""{made} from {read or "nothing"}."""', WIDTH - 8)
        return [f"    {line}" for line in lines]

    def grid_order(self) -> tuple[str, ...]:
        """Return the grid axes that have several programs: single positions first, then tiles, rows last."""
        roles = self.plan.roles
        single = [axis for axis in self.program.grid if roles[axis] == "single"]
        tiled = [axis for axis in self.program.grid if roles[axis] == "tile"]
        return (*single, *reversed(tiled))

    def repeated(self, body: list[str]) -> list[str]:
        """Return the body, in a loop over places on the grid where programs are persistent."""
        grid = self.grid_order()
        if not self.persistent or not grid:
            return body
        programs = " * ".join(self._programs(axis) for axis in grid)
        return [
            f"for pid in range(tl.program_id(0), {programs}, tl.num_programs(0)):",
            *(f"    {line}" if line else "" for line in body),
        ]

    def _programs(self, axis: str) -> str:
        if self.plan.roles[axis] == "single":
            return self.extents[axis]
        return f"tl.cdiv({self.extents[axis]}, {self.block[axis]})"

    def head(self) -> list[str]:
        """Return the lines that say where a program stands, as far as the printed body mentions them."""
        definitions: list[_Definition] = []
        mentioned = frozenset(self.mentions.found)
        for axis, end in self.ends.items():
            definitions.append((end, partial(self._end_line, axis, end)))
        looped = {axis for _, loops in self.program.flat() for axis in loops}
        for axis, role in self.plan.roles.items():
            if axis not in looped and role != "single":
                definitions += self.place_definitions(axis, partial(self._tile_start, axis, role))
        places = self.mentioned(definitions)
        for name, axes in self.hoisted.items():
            if axes and self.bases.get(name) in mentioned:
                steps = " + ".join(f"{self.pid[axis]} * {self.strides[name, axis]}" for axis in axes)
                pointer, base = self.pointers[name], self.bases[name]
                places.append(f"{pointer} += {steps}" if pointer == base else f"{base} = {pointer} + {steps}")
        grid = self.grid_order()
        if not grid:
            return [*places, *([""] if places else [])]
        lines = []
        start = "pid" if self.persistent else "tl.program_id(0)"
        if len(grid) == 1:
            lines.append(self._pid_line(grid[0], start))
        else:
            lines += [] if self.persistent else [f"pid = {start}"]
            rest = "pid"
            if self._grouped():
                lines += self._group_lines(grid[-2], grid[-1], last=len(grid) == 2)
                rest = f"pid // ({self._programs(grid[-1])} * {self._programs(grid[-2])})"
                grid = grid[:-2]
            for axis in reversed(grid):
                found = rest if axis == grid[0] else f"{rest} % {self._programs(axis)}"
                lines.append(self._pid_line(axis, found))
                if axis != grid[0]:
                    rest = f"{rest} // {self._programs(axis)}"
        return [*lines, *places, ""]

    def _grouped(self) -> bool:
        """Return whether programs run in groups: where exactly two axes of the grid are tiled."""
        tiled = [axis for axis in self.program.grid if self.plan.roles[axis] == "tile"]
        return self.config.group > 1 and len(tiled) == 2

    def _group_lines(self, slow: str, fast: str, *, last: bool) -> list[str]:
        """Return the lines that say where a program stands if tiles of the slow axis run in groups."""
        names = self.unique
        within, width, first, count = (names.take(one) for one in ("within", "width", "first", "count"))
        number, group = self._programs(slow), self.config.group
        return [
            f"{within} = pid" if last else f"{within} = pid % ({self._programs(fast)} * {number})",
            f"{width} = {group} * {self._programs(fast)}",
            f"{first} = {within} // {width} * {group}",
            f"{count} = tl.minimum({number} - {first}, {group})",
            self._pid_line(slow, f"{first} + {within} % {width} % {count}"),
            self._pid_line(fast, f"{within} % {width} // {count}"),
        ]

    def _pid_line(self, axis: str, place: str) -> str:
        """Return the line that says at which tile of an axis a program is; those of most work come first.

        Programs start in order, so short ones at the end fill the gaps that long ones leave.
        """
        if self._grows(axis):
            behind = f"({place})" if " + " in place else place
            place = f"{self._programs(axis)} - 1 - {behind}"
        return f"{self.pid[axis]} = {self.wide(place)}"

    def _grows(self, axis: str) -> bool:
        """Return whether programs have more to do the further they are along an axis of the grid."""
        growth = 0
        for loop in self.program.loops():
            for reach in loop.reaches:
                steps = sum(factor for term, factor in reach.form if (("index", axis),) == term)
                if steps and self._is_known(reach):
                    growth += steps if reach.upper else -steps
        return growth > 0

    def _end_line(self, axis: str, end: str) -> str:
        split, size = self.splits[axis], self.extents[axis]
        rest = f"{self.extents[split.axis]} - {self.pid[split.outer]} * {size}"
        return f"{end} = tl.minimum({size}, {rest})"

    def _tile_start(self, axis: str, role: Role) -> str:
        return f"{self.pid[axis]} * {self.block[axis]} + " if role == "tile" else ""

    def place_definitions(self, axis: str, start: Callable[[], str]) -> list[_Definition]:
        """Return how the positions of a tile along an axis are defined, and which are within the axis."""
        place, mask = self.place.get(axis, ""), self.mask.get(axis, "")

        def positions() -> str:
            lanes = f"tl.arange(0, {self.block[axis]})"
            return f"{place} = {self.wide(f'{start()}{lanes}')}"

        def within() -> str:
            return f"{mask} = {self.place[axis]} < {self.end(axis)}"

        return [(place, positions), *([(mask, within)] if self.masked(axis) else [])]

    def mentioned(self, definitions: Sequence[_Definition]) -> list[str]:
        """Return the definitions whose names the printed lines, or later definitions, mention."""
        lines: list[str] = []
        for name, line in reversed(definitions):
            if name in self.mentions.found:
                lines.insert(0, line())
        return lines

    def bound(self, reach: Reach, *, everywhere: bool = False) -> str | None:
        """Return the end of what a program can reach, or its start; None where it is not known.

        With `everywhere` it is the end of what all positions of the program's tile can reach.
        """
        if not self._is_known(reach):
            return None
        terms: list[str] = []
        offset = 1 if reach.upper else 0
        for term, factor in reach.form:
            if not term:
                offset += factor
                continue
            texts: list[str] = []
            for kind, axis in term:
                if kind == "size":
                    texts.append(self.extents[axis])
                    continue
                if self.plan.roles[axis] == "single":
                    texts.append(self.pid[axis])
                    continue
                last = ((factor == 1) == reach.upper) != everywhere  # the last position of the tile counts
                offset -= factor if last else 0
                first = f"({self.pid[axis]} + 1)" if last else self.pid[axis]
                texts.append(f"{first} * {self.block[axis]}")
            terms.append(f"{'-' if factor < 0 else ''}{' * '.join(texts)}")
        terms.sort(key=lambda text: text.startswith("-"))
        total = " + ".join([*terms, *([str(offset)] if offset else [])]).replace("+ -", "- ")
        return total or "0"

    def _is_known(self, reach: Reach) -> bool:
        """Return whether a program knows all positions of a bound: those of tiles are no factors."""
        roles = self.plan.roles
        return all(
            abs(factor) == 1
            and all(
                kind == "size"
                or (axis in self.program.grid and roles[axis] == "single")
                or (axis in self.program.grid and roles[axis] == "tile" and len(term) == 1)
                for kind, axis in term
            )
            for term, factor in reach.form
            if term
        )
