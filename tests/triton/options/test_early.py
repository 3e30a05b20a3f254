"""A kernel that starts early: where it may, how it is compiled and launched, and that it waits elsewhere."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from compiling import compile_ahead

from superopt.codegen.errors import CompileError
from superopt.codegen.triton import TritonMuGraph
from superopt.codegen.triton.run import launch
from superopt.errors import InputError
from superopt.export import triton_module
from superopt.export.limits import limits_of
from superopt.ir import parse_mugraph
from superopt.targets import config_json, pick_target

TEXT = (Path(__file__).parents[1] / "golden" / "gqa_decode.txt").read_text()


def built(**changed):
    """Return attention on a cache in two kernels, the second of which combines parts, and starts early."""
    mugraph = parse_mugraph(TEXT)
    first, second = (TritonMuGraph(mugraph).source(at, mugraph.graph.sizes).config for at in (0, 1))
    return TritonMuGraph(mugraph, [first, replace(second, early=True, **changed)])


def early_source():
    made = built()
    return made.source(1, made.graph.sizes)


def test_nothing_is_read_or_written_before_the_wait():
    body = early_source().text.partition('"""out')[2].splitlines()[1:]
    assert body[0].strip().startswith("gdc_wait()")
    assert body[1].strip() == "gdc_launch_dependents()"
    persistent = built(persistent=2)
    lines = [line.strip() for line in persistent.source(1, persistent.graph.sizes).text.splitlines()]
    waits = [at for at, line in enumerate(lines) if line.startswith("gdc_wait()")]
    assert len(waits) == 1
    assert waits[0] < next(at for at, line in enumerate(lines) if line.startswith("for pid in"))


def test_its_code_waits_on_a_device_that_can_launch_so():
    made = compile_ahead(early_source(), target="cuda:90", texts=True)
    assert "griddepcontrol.wait" in made.ptx
    assert "griddepcontrol.launch_dependents" in made.ptx
    with pytest.raises(CompileError, match="for cuda:90 and later"):
        compile_ahead(early_source(), target="cuda:80")


def test_only_what_follows_another_kernel_without_products_starts_early():
    mugraph = parse_mugraph(TEXT)
    found = {
        (name, number): {one.early for one in pick_target(name).configs(mugraph, number)}
        for name in ("cuda:80", "cuda:90")
        for number in (0, 1)
    }
    assert found.pop(("cuda:90", 1)) == {True, False}
    assert set(map(frozenset, found.values())) == {frozenset({False})}


def test_a_configuration_for_another_device_is_refused():
    data = config_json(early_source().config)
    assert pick_target("cuda:90").config_from_json(data).early
    with pytest.raises(InputError, match="cuda:90 can"):
        pick_target("cuda:80").config_from_json(data)


@pytest.mark.parametrize("hopper", [False, True])
def test_it_is_launched_so_where_the_device_can_and_waits_elsewhere(hopper, monkeypatch):
    class Kernel:
        def __init__(self, text):
            self.text = text

        def __getitem__(self, grid):
            return lambda *arguments, **options: calls.append((self.text, options))

    calls = []
    monkeypatch.setattr(launch, "load_kernel", lambda text, name: Kernel(text))
    monkeypatch.setattr(launch, "_is_hopper", lambda device: hopper)
    made = built()
    tensors = {
        port.name: torch.zeros(made.graph.shape(port), dtype=torch.bfloat16) for port in made.graph.inputs
    }
    made(**tensors)
    assert ["gdc_wait" in text for text, _ in calls] == [False, hopper]
    assert [options.get("launch_pdl", False) for _, options in calls] == [False, hopper]


def test_exported_modules_wait_and_so_run_everywhere():
    mugraph, configs = built().mugraph, built().configs
    told = {"name": "attention", "target": pick_target("cuda:90"), "limits": limits_of({}, [mugraph.graph])}
    texts, _ = triton_module.triton_parts(SimpleNamespace(mugraph=mugraph, configs=configs, **told))
    assert texts
    assert not any("gdc_wait" in text for text in texts)
