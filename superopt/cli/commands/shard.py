"""`superopt shard`: how a program, or a reduction, is best spread over the devices of a machine."""

import argparse
from typing import TYPE_CHECKING, Any

from superopt.cli.screen import Block, Code, Table, Text, print_blocks, print_json
from superopt.cli.target import add_inputs, load_target
from superopt.cli.userfile import to_stderr
from superopt.cli.writing import check_place, check_source, write_text
from superopt.errors import InputError

if TYPE_CHECKING:
    from superopt.shard import PlacedReduction, ShardResult

__all__ = ["add_command"]

_EPILOG = """\
examples:
  superopt shard --mesh "node=2 @ 10 GB/s, gpu=4 @ 200 GB/s" \\
      --axes "data=4, tensor=2" --reduce data
  superopt shard mlp.py:mlp --mesh "gpu=4 @ 200 GB/s" \\
      --inputs "f32[64,4096] f32[4096,16384] f32[16384,4096]"
  superopt shard mlp.py:mlp --mesh "node=2, gpu=4" --pin "x=whole" \\
      --inputs "f32[8,64] f32[64,64]" -o out.py --html out.html
  torchrun --nproc-per-node 4 --no-python \\
      superopt shard --measure --mesh "node=2, gpu=2"

Exit code 0: found and proven. Exit code 1: no proof of the fastest plan. Exit code 2: bad input.
"""

_SHOWN = 12  # placements in a table


def add_command(commands: Any) -> None:
    """Add `superopt shard`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "shard",
        help="spread a program, or a reduction, over several devices",
        description="Finds how to spread a program, or a reduction, over the devices of a machine.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "target", metavar="TARGET", nargs="?", help="a named workload, or file.py:function; none with --axes"
    )
    add_inputs(parser)
    parser.add_argument(
        "--mesh",
        required=True,
        metavar="TEXT",
        help='levels with their links, outermost first: "node=2 @ 10 GB/s, gpu=4 @ 200 GB/s, device 80 GB"',
    )
    parser.add_argument(
        "--measure", action="store_true", help="measure the links of this torchrun job, and print the mesh"
    )
    parser.add_argument("--pin", default="", metavar="TEXT", help='how tensors lie: "x=whole, w=n:gpu"')
    parser.add_argument("--memory", type=float, metavar="GB", help="on each device (default: the mesh says)")
    parser.add_argument("--axes", metavar="TEXT", help='parallel axes of a reduction: "data=4, tensor=2"')
    parser.add_argument("--reduce", metavar="AXIS", help="the axis to reduce along (default: the first)")
    parser.add_argument(
        "--bytes", type=float, default=100e6, metavar="B", help="of the tensor to reduce (default 1e8)"
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="where the program goes, as a Python module")
    parser.add_argument("--html", metavar="FILE", help="where a page about the plans goes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.measure:
        return _measured(arguments)
    if (arguments.target is None) == (arguments.axes is None):
        raise InputError("give either a function to shard, or --axes of a reduction")
    if arguments.axes is not None:
        return _reduction(arguments)
    place = check_place(arguments.out) if arguments.out is not None else None
    page = check_place(arguments.html) if arguments.html is not None else None
    target = load_target(arguments.target)
    check_source(place, target.file)
    check_source(page, target.file)
    inputs = target.inputs(arguments)
    from superopt.shard import shard_program

    if arguments.memory is not None and not arguments.memory > 0:
        raise InputError(f"--memory {arguments.memory:g}: give gigabytes above 0")
    memory = None if arguments.memory is None else arguments.memory * 1e9
    with to_stderr():
        result = shard_program(
            target.program, *inputs, machine=arguments.mesh, pins=arguments.pin, memory=memory
        )
        source = result.source if place is not None and result.verdict else None
    if page is not None:
        write_text(page, result.page)
    if place is not None and source is not None:
        write_text(place, source)
    if arguments.json:
        print_json({"schema": "superopt.shard/1", "target": arguments.target, **_as_json(result)})
    else:
        print_blocks(_blocks(result))
    return 0 if result.verdict else 1


def _measured(arguments: argparse.Namespace) -> int:
    if arguments.target is not None or arguments.axes is not None:
        raise InputError("--measure: only --mesh goes with it; shard with the mesh that it prints")
    from superopt.shard.measure import measure_job

    with to_stderr():
        machine = measure_job(arguments.mesh)
    if machine is not None and arguments.json:
        print_json({"schema": "superopt.machine/1", "mesh": str(machine)})
    elif machine is not None:
        print_blocks([Code(f"{machine}\n")])
    return 0


def _reduction(arguments: argparse.Namespace) -> int:
    from superopt.shard import place_reduction
    from superopt.shard.placements import parse_axes

    axes = parse_axes(arguments.axes)
    if not arguments.bytes > 0:
        raise InputError(f"--bytes {arguments.bytes:g}: give a number above 0")
    found = place_reduction(arguments.mesh, axes, arguments.reduce or next(iter(axes)), arguments.bytes)
    if arguments.json:
        print_json({"schema": "superopt.reductions/1", "placements": [_placed_json(one) for one in found]})
        return 0
    rows = tuple(
        (
            str(one.placement),
            f"{one.seconds * 1e3:.3f}",
            f"{one.all_reduce_s / one.seconds:.2f}" if one.seconds else "-",
            one.text,
        )
        for one in found[:_SHOWN]
    )
    print_blocks([Table(("placement", "ms", "times an all-reduce", "program"), rows)])
    return 0


def _placed_json(one: "PlacedReduction") -> dict[str, Any]:
    rows = zip(one.placement.axes, one.placement.factors, strict=True)
    return {
        "placement": {axis: list(row) for axis, row in rows},
        "program": one.text,
        "seconds": one.seconds,
        "all_reduce_s": one.all_reduce_s,
    }


def _as_json(result: "ShardResult") -> dict[str, Any]:
    best = result.plans.best
    return {
        "mesh": str(result.plans.machine),
        "seconds": best.seconds,
        "moving_s": best.moving_s,
        "bytes": best.bytes,
        "complete": result.plans.complete,
        "placements": {name: list(one) for name, one in result.placements.items()},
        "program": str(best.sharded).splitlines(),
        "parallelize_module": _styles(result),
        "alternatives": [{"seconds": one.seconds, "bytes": one.bytes} for one in result.plans.found[1:]],
        "verdict": result.verdict.verdict.to_json(),
    }


def _styles(result: "ShardResult") -> dict[str, dict[str, str] | str]:
    """Return the plans for `parallelize_module` by level, or what stands in the way."""
    found: dict[str, dict[str, str] | str] = {}
    for level in result.plans.machine.levels if result.traced is not None else ():
        try:
            found[level.name] = {name: str(style) for name, style in result.styles(level.name).items()}
        except InputError as error:
            found[level.name] = str(error)
    return found


def _blocks(result: "ShardResult") -> list[Block]:
    best, verdict = result.plans.best, result.verdict
    headline, *more = str(verdict.verdict).splitlines()
    sharded = best.sharded
    rows = tuple(
        (name, sharded.placed(sharded.placement_of(name)), ", ".join(one))
        for name, one in result.placements.items()
    )
    blocks: list[Block] = [
        Text(f"{sharded.layout.graph.name} on {result.plans.machine}"),
        Table(("tensor", "lies", "DTensor"), rows),
        Code(str(sharded)),
        *(
            Table((f"module along {level}", "style"), tuple(plan.items()))
            if isinstance(plan, dict)
            else Text(plan)
            for level, plan in _styles(result).items()
            if plan
        ),
        Text(
            f"simulated: {best.seconds * 1e6:.1f} µs; moves take {best.moving_s * 1e6:.1f} µs, beside"
            f" computing where they can; {best.bytes / 1e6:.1f} MB on each device"
        ),
        Text("" if result.plans.complete else "not all states were kept: a faster plan may exist"),
        Text(headline, "bold green" if verdict else "bold red"),
        *(Text(line) for line in more),
    ]
    if verdict.fault is not None:
        blocks.append(Text(verdict.fault.text(sharded.layout.mesh.names)))
    return [block for block in blocks if block != Text("")]
