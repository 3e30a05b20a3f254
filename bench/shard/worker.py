"""One process of the mesh: it runs the programs of all tasks in turns, and the first one writes times."""

import json
import random
import sys
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from superopt.shard.machine import parse_machine
from superopt.shard.measure import measured_machine
from superopt.shard.output.runtime import ProcessMesh, ReductionStep

_LONG_ENOUGH_S, _MOST_REPEATS = 0.1, 10  # of a program in a turn


def main(place: str, rank: int) -> None:
    """Run the tasks in a file, and write the seconds of each run of each program beside it."""
    request = json.loads(Path(place).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=request["address"], rank=rank, world_size=request["processes"]
    )
    machine = measured_machine(parse_machine(request["levels"]))
    order = random.Random(0)  # the same turns on every process
    results = []
    start = perf_counter()
    for task in request["tasks"]:
        late = torch.tensor([float(perf_counter() - start > request["seconds"])])
        dist.broadcast(late, 0)
        if late:
            break
        mesh = ProcessMesh(task["counts"])
        programs = [_steps(program) for program in task["programs"]]
        places = torch.arange(task["bytes"] // 4) % 1009 + 1.0  # sums of these are exact
        tensor = places * (rank + 1)
        wanted = places * sum(member + 1 for member in mesh.members(rank, task["own"]))
        seconds: list[list[float]] = [[] for _ in programs]
        repeats = [1] * len(programs)
        for turn in range(request["turns"] + 1):  # the first turn makes the groups and is not counted
            for at in order.sample(range(len(programs)), len(programs)):
                dist.barrier()
                begun = perf_counter()
                for _ in range(repeats[at]):
                    made = mesh.reduce(tensor, programs[at])
                taken = torch.tensor([(perf_counter() - begun) / repeats[at]])
                assert torch.equal(made, wanted), (task, at)
                dist.all_reduce(taken, dist.ReduceOp.MAX)
                if turn:
                    seconds[at].append(float(taken))
                else:
                    repeats[at] = max(1, min(_MOST_REPEATS, int(_LONG_ENOUGH_S / float(taken))))
        results.append(seconds)
    if rank == 0:
        Path(f"{place}.out").write_text(
            json.dumps({"machine": str(machine), "seconds": results}), encoding="utf-8"
        )
    dist.barrier()
    dist.destroy_process_group()


def _steps(program: list[list[object]]) -> list[ReductionStep]:
    return [(str(name), tuple(along), tuple(first)) for name, along, first in program]  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
