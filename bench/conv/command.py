"""Conv: blocks of convolutional nets, by eager PyTorch, by Inductor, and by superopt's backend.

    python -m bench.conv --json OUT                        every block, about 25 minutes on two cores
    python -m bench.conv --cases depthwise,mobilenet --budget 60
    python -m bench.conv --dtype bf16 --layout channels_last --peers freezing
    python -m bench.conv --cases resnet-basic --graphs     also the programs found, and why they gain
    python -m bench.conv --list

Measured: one block of a net in evaluation mode, compiled by superopt's backend with weights that stay live
("superopt") and with frozen ones ("superopt frozen"). Against: eager PyTorch, Inductor, and the peers that
are asked for, all in turns. A speedup is the better of eager and Inductor over superopt, losses included.
Contenders are compiled in both orders, after a program that is thrown away. The control is Inductor's time
over that of its own second compilation: ratios that are as near to 1 tell nothing.
On one thread the processor's time counts, which other programs do not lengthen; on more it is the clock's.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import geometric_mean, median
from typing import Any

from superopt.bench.harness.command import Parser, above_zero, check_names, check_out, from_one, listed
from superopt.bench.harness.records import Record, failed, launch_record, merged
from superopt.bench.harness.results import Results, begin, machine, tell
from superopt.bench.harness.rivals import ready
from superopt.bench.harness.turns import clock_for, in_turns
from superopt.bench.models.peers import PEERS
from superopt.errors import SuperoptError
from superopt.tune.measure import Times

__all__ = ["main", "measure"]

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_LAYOUTS = ("contiguous", "channels_last")
_LEAST_ROUNDS = 11
_AGAIN = "inductor again"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the blocks that are asked for; return 0 where each was measured."""
    parser = Parser("conv", __doc__)
    add = parser.add_argument
    add("--cases", default="", help="only these blocks, by commas (default: all)")
    add("--dtype", default="fp32", choices=_DTYPES)
    add("--layout", default="contiguous", choices=_LAYOUTS)
    add("--threads", type=from_one, default=2, help="of every contender (default: 2)")
    add("--budget", type=above_zero, default=40.0, help="seconds of search for a block (default: 40)")
    add("--seconds", type=above_zero, default=4.0, help="of the turns of a block (default: 4)")
    add("--peers", default="", help=f"other compilers, by commas: {', '.join(PEERS)}")
    parser.add_results(minutes=60.0)
    add("--graphs", action="store_true", help="print the programs that were found, and why each gains")
    add("--list", action="store_true", help="show the blocks")
    return parser.run(arguments, _run)


def _run(options: Namespace) -> int:
    from superopt.bench.conv.blocks import BLOCKS

    check_names("--cases", listed(options.cases), list(BLOCKS))
    check_names("--peers", listed(options.peers), list(PEERS))
    names = listed(options.cases) or list(BLOCKS)
    if options.list:
        print("\n".join(names))
        return 0
    check_out(options.json, resume=options.resume)
    settings = {name: getattr(options, name) for name in ("dtype", "layout", "threads", "budget", "peers")}
    results = Results(names, options.json, begin("conv", settings, machine(), {}))
    for name in results.left(options.minutes):
        known = {"case": name, "sizes": {"image": list(BLOCKS[name][1])}}
        try:
            record = known | measure(name, options)
        except SuperoptError as error:
            record = failed(known, error)
        results.keep(name, record)
        tell(_line(record))
        if options.graphs:
            print("\n".join(_found(record)))
    found = [one["speedup"] for one in results.records.values() if "speedup" in one]
    if found:
        mean = geometric_mean(found)
        tell(
            f"{mean:.3f} times the better of eager and Inductor in the geometric mean, least {min(found):.2f}"
        )
    return 0 if len(found) == len(names) else 1


def measure(name: str, options: Namespace) -> Record:
    """Return the record of one block: of two launches, in which contenders are compiled in both orders.

    Its `control` is Inductor's time over that of its own second compilation.
    """
    import torch

    from superopt.backend.entry import ledger_of
    from superopt.bench.conv.blocks import BLOCKS
    from superopt.bench.conv.found import found_programs

    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    build, shape = BLOCKS[name]
    dtype = getattr(torch, _DTYPES[options.dtype])
    block, image = build().eval().to(dtype), torch.randn(shape, dtype=dtype)
    if options.layout == "channels_last" and len(shape) == 4:
        block, image = block.to(memory_format=torch.channels_last), _channels_last(image)  # type: ignore[call-overload]
    absent: dict[str, str] = {}
    records, ledgers = [], []
    try:
        for turn in (1, -1):
            settings = {"budget_s": options.budget}
            wanted = _contenders(block, listed(options.peers), settings)
            names = list(wanted)[::turn]
            taken, absent = _launch({one: wanted[one] for one in names}, block, image, options)
            again = taken.pop(_AGAIN)
            pairs = zip(taken["inductor"].us, again.us, strict=True)
            records.append(
                launch_record(taken, "superopt", "eager") | {"control": median(a / b for a, b in pairs)}
            )
            ledger = ledger_of(settings)
            ledgers.append((list(ledger.decisions), ledger.text()))
    finally:
        torch.set_num_threads(before)
    record = merged(records)
    record["control"] = round(geometric_mean([one["control"] for one in records]), 4)
    record["speedup"] = round(min(record["ratios"][one] for one in ("eager", "inductor")), 3)
    decisions, text = ledgers[0]  # the second launch recalls what the first one decided
    record["regions"] = {"taken": sum(one.taken for one in decisions), "all": len(decisions)}
    record["explained"] = text.splitlines()
    record["found"] = found_programs(decisions)
    return record | ({"absent": absent} if absent else {})


def _contenders(
    block: Any, peers: Sequence[str], settings: dict[str, Any]
) -> dict[str, Callable[[], Callable[..., Any]]]:
    """Return what compiles a block, by the names of the contenders."""
    import torch

    frozen = {**settings, "weights": "frozen"}
    return {
        "superopt": lambda: torch.compile(block, backend="superopt", options=settings),
        "superopt frozen": lambda: torch.compile(block, backend="superopt", options=frozen),
        "inductor": lambda: torch.compile(block),
        _AGAIN: lambda: torch.compile(block, backend=_inductor_anew()),
        **{peer: partial(PEERS[peer], block) for peer in peers},
    }


def _launch(
    wanted: Mapping[str, Callable[[], Callable[..., Any]]], block: Any, image: Any, options: Namespace
) -> tuple[dict[str, Times], dict[str, str]]:
    """Compile contenders in this order, and return their times, and why some are absent."""
    import torch

    torch._dynamo.reset()  # else sizes that differ from those of the block before would become symbols

    def called(make: Callable[[], Callable[..., Any]]) -> Callable[[], Any]:
        program = make()
        return lambda: program(image)

    with torch.no_grad():
        # Whoever is compiled first in a process may be slower by 2%, even with the same code.
        first: Any = torch.compile(block, backend=_inductor_anew())
        first(image)
        makes = {name: partial(called, make) for name, make in wanted.items()}
        found, absent = ready(makes, tuple, needed="superopt")
        runs = {"eager": lambda: block(image), **found}
        times = in_turns(
            runs, clock_for(options.threads), seconds=options.seconds / 2, least_rounds=_LEAST_ROUNDS
        )
    return times, absent


def _inductor_anew() -> Callable[..., Callable[..., Any]]:
    """Return Inductor as a backend of its own: Dynamo compiles a graph once for each backend."""
    from superopt.rivals.inductor import with_inductor

    return lambda graph, example, **unused: with_inductor(graph, example, {})


def _channels_last(image: Any) -> Any:
    import torch

    return image.contiguous(memory_format=torch.channels_last)


def _line(record: Record) -> str:
    if "error" in record:
        return f"{record['case']:20} {record['error']}"
    times = ", ".join(f"{name} {one['median_us']:.0f}" for name, one in record["measured"].items())
    regions = f"{record['regions']['taken']}/{record['regions']['all']} regions"
    told = f"control {record['control']:.3f}  {regions:14} us: {times}"
    return f"{record['case']:20} {record['speedup']:5.2f}x  {told}"


def _found(record: Record) -> Iterator[str]:
    """Yield the lines of the programs that were found for a block, each with the reasons for its gain."""
    for one in record.get("found", ()):
        yield f"    {one['operators']}: {one['speed']}"
        yield from (f"      - {reason}" for reason in one["reasons"])
        yield from (f"      {line}" for line in one["program"])
