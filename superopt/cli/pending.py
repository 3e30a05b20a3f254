"""`superopt tune --pending`: the regions and graphs for which the budget of torch.compile was too small."""

from typing import TYPE_CHECKING

from superopt.cli.live import LiveLine
from superopt.cli.scratch import own_scratch
from superopt.cli.screen import Table, Text, print_blocks, print_json
from superopt.cli.userfile import to_stderr
from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from superopt.backend.deferred.queue import Pending
    from superopt.backend.deferred.work import Attempt

__all__ = ["run_pending"]


def run_pending(minutes: float | None, *, quiet: bool, json: bool) -> int:
    """Work the queue off, and print what became of each region; return the exit code."""
    with own_scratch(), to_stderr(), LiveLine(quiet=quiet or json) as tell:
        from superopt.backend.deferred.lock import owner_of_lock, tuning
        from superopt.backend.deferred.queue import pending_items
        from superopt.backend.deferred.work import work_through

        def show(at: int, count: int, item: "Pending") -> None:
            tell(f"{at} of {count}: {item.operators} of {item.inputs}")

        waiting = pending_items()
        found: list[Attempt] = []
        if waiting:
            with tuning() as free:
                if not free:
                    raise SuperoptError(
                        f"process {owner_of_lock()} works the queue off, or the cache cannot be written;"
                        " wait for its end, or see superopt cache info"
                    )
                found = work_through(seconds=None if minutes is None else minutes * 60, tell=show)
        left = len(pending_items()) if waiting else 0
    if json:
        print_json({"regions": [one.to_json() for one in found], "pending": left})
    else:
        print_blocks(_blocks(found, left))
    return 0


def _blocks(found: "list[Attempt]", left: int) -> list[Table | Text]:
    if not found and not left:
        return [Text("nothing is pending: no budget left a region of torch.compile undone")]
    if not found:
        return [Text(f"no time for anything; {left} wait")]
    rows = tuple(
        (
            one.operators,
            one.inputs,
            "faster" if one.faster else "as before" if one.done else "waits",
            _us(one.before_us),
            _us(one.after_us),
            f"{one.seconds:.0f}",
            one.why,
        )
        for one in found
    )
    better = sum(one.faster for one in found)
    return [
        Table(("region", "inputs", "result", "Inductor, µs", "superopt, µs", "seconds", "why"), rows),
        Text(f"{better} of {len(found)} are faster; {left} wait"),
    ]


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
