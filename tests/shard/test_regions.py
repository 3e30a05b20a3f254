"""Programs of several regions: calls between them that are no algebra, and what is redistributed for them."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from shard.processes import Case, worst_errors
from torch import Tensor

from superopt.errors import InputError
from superopt.shard import shard_program
from superopt.shard.proof import prove_sharded
from superopt.shard.sharded import Instruction, Sharded

# Devices so slow that sharding is worth its while on small tensors.
SLOW = "device 1 MFLOP/s 10 MB/s"
TWO = f"gpu=2 @ 1 GB/s 1 us, {SLOW}"
FOUR = f"node=2 @ 1 GB/s 2 us own, gpu=2 @ 10 GB/s 1 us, {SLOW}"


def running(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """A maximum along the tokens needs all of them, and a sort of features needs all of these."""
    first = torch.cummax(torch.relu(x @ w), 0).values
    return torch.sort(first @ v, -1).values * 2


def routed(ids: Tensor, table: Tensor, w: Tensor, gate: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """An embedding, and gates of the two best experts."""
    hidden = torch.relu(torch.nn.functional.embedding(ids, table) @ w)
    best, which = torch.topk(torch.softmax(hidden @ gate, -1), 2, dim=-1)
    gates = torch.zeros(hidden.shape[0], gate.shape[1]).scatter(1, which, best)
    return (torch.cummax(hidden, 0).values * gates.square().sum(-1, keepdim=True)) @ out, which


def written(x: Tensor, at: Tensor, w: Tensor) -> Tensor:
    """An operator that writes into a tensor between two regions."""
    made = x @ w
    made.index_add_(0, at, torch.relu(x))
    return torch.exp(made - made.amax(-1, keepdim=True))


RUNNING = ((16, 32), (32, 32), (32, 16))


def made_of(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_regions_that_want_different_shardings_are_redistributed_between() -> None:
    result = shard_program(running, *made_of(*RUNNING), machine=TWO)
    assert result.verdict, str(result.verdict.verdict)
    assert result.verdict.verdict.oracles == ("aten.cummax.default", "aten.sort.default")
    sharded = result.plans.best.sharded
    ports, made_by = sharded.layout.graph.inputs, sharded.layout.made_by
    # Features are shared out before the running maximum, tokens before the sort; in between, data move.
    split = {
        (made_by[one.value][0].name, [one.placement[0] in dim for dim in ports[one.value].dims].index(True))
        for one in sharded.instructions
        if one.kind == "call"
    }
    assert split == {("cummax_1", 1), ("sort_1", 0)}
    assert sharded.moves


def looked_up(ids: Tensor, table: Tensor, w: Tensor) -> Tensor:
    return torch.relu(torch.nn.functional.embedding(ids, table)) @ w


def test_the_limit_of_memory_holds_across_regions() -> None:
    inputs = [torch.arange(8), *made_of((4096, 64), (64, 16))]
    machine = "gpu=4 @ 1 GB/s 100 us"
    free, tight = (
        shard_program(looked_up, *inputs, machine=machine, pins="ids=whole, out=whole", memory=memory)
        for memory in (None, 0.5e6)
    )
    assert not any(free.plans.best.sharded.placement_of("table"))
    assert tight.placements["table"] == ("Shard(1)",)
    assert tight.plans.best.bytes <= 0.5e6 < free.plans.best.bytes
    assert free.plans.best.seconds < tight.plans.best.seconds
    with pytest.raises(InputError, match="the nearest choice that works"):
        shard_program(looked_up, *inputs, machine=machine, memory=1e5)


def planted(sharded: Sharded) -> dict[str, Sharded]:
    """Return wrong programs: what a call reads or makes is not what the operator reads or makes."""
    sort = next(at for at, one in enumerate(sharded.instructions) if one.kind == "call")
    call = sharded.instructions[sort]
    instructions = list(sharded.instructions)
    operand = instructions[call.inputs[0]]

    def instead(at: int, one: Instruction) -> Sharded:
        return replace(sharded, instructions=(*instructions[:at], one, *instructions[at + 1 :]))

    feature = sharded.layout.graph.inputs[call.value].dims[1][0]
    first = next(at for at, one in enumerate(instructions) if one.kind == "enter")
    return {
        "a chunk of what it mixes": instead(sort, replace(call, placement=(feature,))),
        "a whole where it made a chunk": instead(sort, replace(call, placement=(None,))),
        "another tensor": instead(sort, replace(call, inputs=(first,))),
        "a result that no call makes": instead(sort, replace(call, kind="enter", inputs=())),
        "an operand in parts": instead(
            call.inputs[0], replace(operand, placement=tuple("+" for _ in operand.placement))
        ),
    }


def sorted_rows(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(torch.sort(x @ w, -1).values)


def test_calls_that_read_or_make_the_wrong_parts_are_refuted() -> None:
    result = shard_program(sorted_rows, *made_of((8, 8), (8, 8)), machine=TWO, pins="x=m:gpu")
    assert result.verdict, str(result.verdict.verdict)
    for name, wrong in planted(result.plans.best.sharded).items():
        verdict = prove_sharded(wrong, original=result.plans.graph)
        assert verdict.verdict.different, name
        assert verdict.fault is not None, name


def long(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(18):
        x = torch.sort(torch.relu(x) * w, 0).values
    return x.exp()


def test_programs_of_more_axes_than_arrays_have_dimensions_are_proven() -> None:
    result = shard_program(long, *made_of((8, 8), (8, 8)), machine=TWO, pins="x=m:gpu")
    sharded = result.plans.best.sharded
    assert len(sharded.layout.graph.axes) > 32
    assert result.verdict, str(result.verdict.verdict)
    at = next(at for at, one in enumerate(sharded.instructions) if one.kind == "call")
    wrong = replace(sharded.instructions[at], inputs=(0,))
    instructions = (*sharded.instructions[:at], wrong, *sharded.instructions[at + 1 :])
    verdict = prove_sharded(replace(sharded, instructions=instructions), original=result.plans.graph)
    assert verdict.verdict.different
    assert verdict.fault is not None


def noisy(x: Tensor) -> Tensor:
    return torch.relu(x) * torch.rand_like(x)


def sorted_alone(x: Tensor) -> Tensor:
    return torch.sort(x, -1).values


def spectrum(x: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(torch.relu(x))) * 2


def strided(x: Tensor) -> Tensor:
    return torch.relu(x.as_strided((4, 4), (1, 4))) * 2


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (spectrum, "makes complex64.*; devices exchange f64, "),
        (strided, "as_strided.default reads memory by its strides"),
        (noisy, "draws random numbers, of which each device would draw its own"),
        (sorted_alone, "has no algebra"),
    ],
)
def test_programs_that_cannot_be_shared_out_say_why(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        shard_program(function, torch.zeros(8, 8), machine=TWO)
    assert "\n" not in str(error.value)


def case_of(
    function: Callable[..., Any], inputs: list[Tensor], machine: str, path: Path, pins: str = ""
) -> Case:
    result = shard_program(function, *inputs, machine=machine, pins=pins)
    assert result.verdict, str(result.verdict.verdict)
    path.write_text(result.source)
    made = function(*inputs)
    layout = result.plans.best.sharded.layout
    names = [port.name for port in layout.entering]
    outputs = made if isinstance(made, tuple) else (made,)
    wanted = zip((output.port.name for output in layout.leaving), outputs, strict=True)
    return path, dict(zip(names, inputs, strict=True)), {name: one.float() for name, one in wanted}


def halves(x: Tensor, w: Tensor) -> Tensor:
    """Each device has a part of the sum that fp16 does not hold."""
    return x.float() @ w.float()


def test_processes_give_the_results_of_all_regions(tmp_path: Path) -> None:
    ids = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    large = torch.full((32, 4), 100.0)
    narrow = [one.half() for one in (torch.full((4, 64), 100.0), torch.cat([large, 1 - large]))]
    cases = [
        case_of(halves, narrow, TWO, tmp_path / "halves.py", "x=k:gpu, out=whole"),
        case_of(running, made_of(*RUNNING), TWO, tmp_path / "running.py"),
        case_of(routed, [ids, *made_of((10, 16), (16, 32), (32, 4), (32, 16))], TWO, tmp_path / "routed.py"),
        case_of(written, [made_of((8, 8))[0], ids % 8, *made_of((8, 8))], TWO, tmp_path / "written.py"),
    ]
    assert max(worst_errors(cases, 2)) < 1e-5


PIECES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, w: torch.relu(x @ w),
    lambda x, w: torch.softmax(x, -1) + x @ w,
    lambda x, w: x - x.mean(0, keepdim=True),
    lambda x, w: torch.logcumsumexp(x, 0),
    lambda x, w: torch.cummin(x, 1).values,
    lambda x, w: torch.sort(x, 0).values,
    lambda x, w: torch.sort(x, -1, descending=True).values,
    lambda x, w: torch.topk(x, 4, dim=1).values @ w[:4],
    lambda x, w: torch.nn.functional.embedding(torch.argmax(x, 1), w) + x,
    lambda x, w: x.kthvalue(2, 1, keepdim=True).values * x,
    lambda x, w: torch.cummax(x, 0).values * torch.median(x, 1, keepdim=True).values,
    lambda x, w: x.t().contiguous().view(-1, 4).logcumsumexp(0).view(8, 8),
)


def drawn(seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    chosen = random.Random(seed).choices(PIECES, k=4)

    def program(x: Tensor, w: Tensor) -> Tensor:
        for piece in chosen:
            x = piece(x, w)
        return torch.tanh(x)

    return program


@pytest.mark.slow
def test_random_programs_of_calls_and_algebra_give_what_eager_gives(tmp_path: Path) -> None:
    cases = []
    for seed in range(24):
        pins = random.Random(seed).choice(["", "x=whole", "out=whole"])
        cases.append(case_of(drawn(seed), made_of((8, 8), (8, 8)), FOUR, tmp_path / f"drawn{seed}.py", pins))
    errors = worst_errors(cases, 4)
    assert max(errors) < 1e-4, errors


def passed_on(x: Tensor) -> tuple[Tensor, ...]:
    return x.clone(), torch.relu(x), torch.relu(x), torch.sort(x, -1).values


def test_results_that_are_inputs_or_each_other_have_names_of_their_own() -> None:
    result = shard_program(passed_on, torch.ones(4, 8), machine="gpu=2")
    assert result.verdict, str(result.verdict.verdict)
    names = [output.port.name for output in result.plans.best.sharded.layout.leaving]
    assert len({"x", *names}) == 5
