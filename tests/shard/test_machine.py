"""The text of a machine, and the ways to place parallel axes on it."""

from math import prod

import pytest
from shard.processes import on_processes

from superopt.errors import InputError
from superopt.shard.api import parse_pins
from superopt.shard.costs import mesh_of
from superopt.shard.machine import parse_machine
from superopt.shard.measure import measure_job, measured_machine
from superopt.shard.placements import grid_of, parse_axes, placements

SMALL = "node=2 @ 10 GB/s, gpu=4 @ 200 GB/s"


def test_text_says_links_and_device() -> None:
    machine = parse_machine("node=2 @ 10 GB/s 7 us, gpu=4 @ 200 GB/s 2 us own, device 40 GB 3 TFLOP/s 20 us")
    node, gpu = machine.levels
    assert (node.count, node.bytes_per_s, node.latency_s, node.shared) == (2, 10e9, 7e-6, True)
    assert (gpu.count, gpu.bytes_per_s, gpu.shared) == (4, 200e9, False)
    device = machine.device
    assert (device.bytes, device.flops_per_s, device.begin_s) == (40e9, 3e12, pytest.approx(20e-6))
    assert parse_machine(str(machine)) == machine


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no level"),
        ("node", "cannot read 'node'"),
        ("node=2 @ 10 parsecs", "is no speed or time"),
        ("node=0", "count of at least 1"),
        ("node=2, node=2", "two levels are called 'node'"),
        ("node=2 @ 0 GB/s", "carry nothing"),
        ("node=99999999", "give at most"),
        ("node=2 @ fast", "cannot read 'fast'"),
        ("node=2, device fast", "cannot read 'fast'"),
    ],
)
def test_mistakes_are_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        parse_machine(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("axes", "machine", "count"),
    [
        ("data=4, tensor=2", SMALL, 2),
        ("data=8", SMALL, 1),
        ("a=4, b=4", "x=4, y=4", 3),
        ("a=2, b=2", "x=4", 1),
    ],
)
def test_placements_multiply_to_sizes_and_counts(axes: str, machine: str, count: int) -> None:
    found = placements(parse_axes(axes), parse_machine(machine))
    assert len(found) == len(set(found)) == count
    for one in found:
        assert [prod(row) for row in one.factors] == list(parse_axes(axes).values())
        columns = zip(*one.factors, strict=True)
        assert [prod(column) for column in columns] == list(parse_machine(machine).counts)
        grid = grid_of(parse_machine(machine), one)
        assert prod(grid.counts) == grid.machine.devices


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ("data=4, tensor=3", "choice that works: tensor=2"),
        ("data=3, tensor=2", "choice that works: axes whose product is 8"),
    ],
)
def test_axes_that_do_not_fit_name_what_would(axes: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        placements(parse_axes(axes), parse_machine(SMALL))


@pytest.mark.parametrize("text", ["", "data", "data=0", "data=2, data=2", "1=2"])
def test_axes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InputError):
        parse_axes(text)


@pytest.mark.slow
def test_links_of_a_job_are_measured() -> None:
    texts = on_processes(4, lambda rank: str(measured_machine(parse_machine("node=2, gpu=2"))))
    assert len(set(texts)) == 1
    machine = parse_machine(texts[0])
    assert machine.counts == (2, 2)
    for level in machine.levels:
        assert 1e6 < level.bytes_per_s < 1e12
        assert 0 < level.latency_s < 1
    assert machine.device.flops_per_s > 1e6


def test_a_job_of_another_size_is_one_line() -> None:
    def refused(rank: int) -> str:
        with pytest.raises(InputError) as error:
            measured_machine(parse_machine("gpu=4"))
        return str(error.value)

    assert "4 devices and the job has 2 processes" in on_processes(2, refused)[0]


def test_no_job_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="torchrun --nproc-per-node 8"):
        measure_job("node=2, gpu=4")


def test_a_level_that_would_be_mistaken_is_refused() -> None:
    with pytest.raises(InputError, match="give that level another name"):
        mesh_of(parse_machine("node=2, local=4"))
    assert mesh_of(parse_machine("node=2, gpu=4")).names == ("node", "gpu")


@pytest.mark.parametrize(
    ("pins", "said"),
    [("x=m:gpu+n:gpu", "has gpu twice"), ("x=m:gpu, w=whole, x=whole", "x is given twice")],
)
def test_pins_say_everything_once(pins: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_pins(pins, parse_machine(SMALL))
    assert parse_pins("x=m:gpu+n:node", parse_machine(SMALL)) == {"x": ("n", "m")}
