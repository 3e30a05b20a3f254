"""Module: the parts of an exported module, put together."""

import re
from collections.abc import Sequence

from superopt._version import __version__
from superopt.codegen.errors import CodegenError
from superopt.errors import InputError
from superopt.export import cpp_module, triton_module
from superopt.export.choice import Choice, choose
from superopt.export.limits import EXPECT_SIZE
from superopt.export.masked import SOURCE
from superopt.export.names import plain_text
from superopt.export.prepared import prepared_parts
from superopt.export.reference import input_lines, reference_lines
from superopt.result import Result

__all__ = ["export_module"]

_EXPECT = '''\
def _expect(name, tensor, dtype, *shape):
    """Refuse a tensor that the kernels were not made for."""
    if tensor.dtype != dtype or tensor.shape != shape or 0 in shape:
        found = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"{name} is {found}; the kernels take {dtype} {shape}, and nothing empty")
    if tensor.is_neg() or tensor._is_zerotensor():
        raise ValueError(f"{name} is negated, or zero, without memory that holds its numbers; copy it")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} needs gradients; these kernels have none, so use torch.no_grad()")
'''

_ON_CPU = """\
    if not tensor.is_cpu:
        raise ValueError(f"{name} is on {tensor.device}; the kernels run on the CPU")
"""

_REACH = """\
    if sum((size - 1) * stride for size, stride in zip(shape, tensor.stride(), strict=True)) >= 2**31:
        raise ValueError(f"{name} is too large: these kernels count elements in 32 bits")
"""

_CHECK = '''\
def check(seed=0, **sizes):
    """Compare with the reference on random inputs; return the largest error as a share of the values."""
    inputs = make_inputs(_device(), seed, **sizes)
    found, expected = {name}(*{given}), reference(*inputs, dtype=torch.float64)
    if isinstance(found, torch.Tensor):
        found, expected = (found,), (expected,)
    worst = 0.0
    for name, one, other in zip({outputs}, found, expected, strict=True):
        tolerance = _TOLERANCES.get(one.dtype, 0.0)
        one, other = one.double(), other.double()
        finite = other.isfinite()
        error = torch.where(finite, one - other, 0.0).abs().max().item()
        scale = max(torch.where(finite, other, 0.0).abs().max().item(), 1e-30)
        ok = one.shape == other.shape and error <= tolerance * scale  # an error that is NaN is none
        # Infinities must be the same; kernels may have a number where the reference has none.
        ok = ok and bool((finite | (one == other) | other.isnan()).all())
        verdict = "fine" if ok else "WRONG"
        if other.isnan().all():
            ok, verdict = False, "NOT COMPARED, as the reference is NaN everywhere"
        print(f"{{name}}: largest error {{error:.2e}}, largest value {{scale:.2e}}: {{verdict}}")
        worst = max(worst, error / scale if ok else math.inf)
    return worst


if __name__ == "__main__":
    raise SystemExit(0 if check() < math.inf else 1)
'''

_TOLERANCES = """\
# Of the largest value: what rounding may do to the results of each dtype.
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2, torch.float64: 1e-4}
"""

_GPU = '''\
def _device():
    """Return where the kernels run: on a GPU, or in Triton's interpreter."""
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    raise SystemExit("no GPU here; TRITON_INTERPRET=1 runs the kernels, slowly, on the CPU")
'''

_CPU = '''\
def _device():
    """Return where the kernels run."""
    return "cpu"
'''


def export_module(result: Result, *, region: int | None = None, candidate: str | None = None) -> str:
    """Return a Python module that computes a region of a result without superopt.

    Regions count from 1; a candidate is found by its id, or else by its name. The kernels are made anew from
    the muGraph and its configuration; no code is taken from the result. The module has the function itself,
    `reference`, the same in plain PyTorch, and `check`, which compares the two on random inputs. Where the
    kernels read tensors that are made of weights once, the function takes these; `prepare` makes them, and
    `load_prepared` reads them from a file of safetensors. Kernels have no gradients: while PyTorch
    records them, the function refuses tensors that need any.
    """
    choice = choose(result, region, candidate)
    _require_equal(choice)
    on_cpu = choice.target.torch_device == "cpu"
    try:
        kernels, launcher = cpp_module.cpp_parts(choice) if on_cpu else triton_module.triton_parts(choice)
    except CodegenError as error:
        raise InputError(f"{choice.name}, {choice.candidate}: {error}") from error
    function = "\n".join(launcher.text())
    prepared = (
        []
        if choice.once is None
        else prepared_parts(choice.goal, choice.mugraph.graph, choice.once, choice.limits)
    )
    reference = "\n".join(reference_lines(choice.goal, limits=choice.limits))
    outputs = ", ".join(f'"{output.port.name}"' for output in choice.goal.outputs)
    given = "inputs" if choice.once is None else "arranged(*inputs)"
    check = _CHECK.format(name=choice.name, given=given, outputs=f"[{outputs}]")
    selects = any("masked_sum(" in part for part in (*prepared, reference))
    parts = [
        *kernels,
        _EXPECT + (_ON_CPU if on_cpu else _REACH if launcher.is_narrow else ""),
        EXPECT_SIZE,
        function,
        *([SOURCE] if selects else []),
        *prepared,
        reference,
        "\n".join(input_lines(choice.goal)),
        _CPU if on_cpu else _GPU,
        _TOLERANCES + "\n\n" + check,
    ]
    body = "\n\n\n".join(part.strip("\n") for part in parts)
    imports = _imports(cpp_module.IMPORTS if on_cpu else triton_module.IMPORTS, body)
    return f"{_docstring(choice)}\n\n{imports}\n\n\n{body}\n"


def _require_equal(choice: Choice) -> None:
    """Prove once more that the candidate computes what its region does: a file may hold anything."""
    if not choice.is_proven():
        raise InputError(f"{choice.name}: {choice.candidate!r} is not equal to its region; optimize it again")


def _docstring(choice: Choice) -> str:
    lines = [f'"""{choice.name}: {plain_text(choice.candidate)}, exported by superopt {__version__}.', ""]
    on_cpu = choice.target.torch_device == "cpu"
    where = "the CPU" if on_cpu else choice.target.name
    measured = ""
    if choice.device is not None and choice.median_us is not None:
        measured = f"; it took {choice.median_us:.1f} us on {plain_text(choice.device)}"
    lines.append(f"Made for {where}{measured}.")
    needs = "torch and a C++ compiler" if on_cpu else "torch and triton"
    lines += [f"Needs only {needs}. Run it to compare it with plain PyTorch.", '"""']
    return "\n".join(lines)


def _imports(wanted: Sequence[str], body: str) -> str:
    """Return the imports that the body uses, in their order."""
    lines = [line for line in wanted if not line or re.search(rf"\b{line.split()[-1]}\b[.(]", body)]
    return "\n".join(lines).strip("\n")
