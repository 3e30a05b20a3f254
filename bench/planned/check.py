"""Check: each kernel of a plan runs once at small sizes and is compared with its graph in float64."""

from typing import Any

from superopt.bench.harness.records import first_line
from superopt.bench.kernels.gpu_cases import small_sizes
from superopt.bench.planned.loaded import Loaded
from superopt.candidates import Candidate
from superopt.candidates.sizes import mugraph_for, resized
from superopt.errors import SuperoptError
from superopt.funnel.assembly import known_tensors
from superopt.targets import Target

__all__ = ["check_case"]

_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3}  # shares of the largest magnitude


def check_case(loaded: Loaded) -> list[str]:
    """Return what is wrong with the kernels of a case, one line each."""
    import torch

    from superopt.trace import trace
    from superopt.workloads import WORKLOADS

    torch.manual_seed(0)
    workload = WORKLOADS[loaded.case.workload]
    dtype = str(loaded.result.inputs[0].dtype).removeprefix("torch.")
    device = "cuda" if torch.cuda.is_available() and loaded.device == "cuda" else "cpu"
    short = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[dtype]
    inputs = workload.inputs(dtype=short, device=device, **small_sizes(loaded.case))
    faults = []
    with torch.no_grad():
        small = trace(workload.function, *inputs, name=loaded.result.program.name)
        sizes = {region.graph.name: region.graph.sizes for region in small.program.regions}
        known = known_tensors(small, inputs)
        for work in loaded.work:
            if work.goal.name not in sizes:  # the inputs of a part of a region are not known here
                continue
            goal = resized(work.goal, sizes[work.goal.name])
            tensors = {port.name: known[port.name] for port in goal.inputs}
            for one in work.candidates:
                fault = _fault(one, goal, tensors, loaded.target, _TOLERANCE[dtype])
                if fault:
                    faults.append(f"{work.goal.name}, {one.name}: {fault}")
    return faults


def _fault(one: Candidate, goal: Any, tensors: Any, target: Target, tolerance: float) -> str | None:
    import torch

    from superopt.trace.run import run_graph

    try:
        kernel = target.make(mugraph_for(one.mugraph, goal), one.configs)
        made = kernel(**tensors)
    except Exception as error:  # a kernel, its compiler or Triton's interpreter may raise anything
        first = first_line(str(error))
        return first if isinstance(error, SuperoptError) else f"{type(error).__name__}: {first}"
    wanted = run_graph(goal, tensors, torch.float64)
    for name, right in wanted.items():
        share = (made[name].double() - right).abs().max() / right.abs().max().clamp(min=1e-30)
        if not share <= tolerance:
            return f"{name!r} is off by {share:.1e} of its largest magnitude"
    return None
