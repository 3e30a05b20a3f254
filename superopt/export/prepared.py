"""Prepared: tensors that are made of weights once, as functions of an exported module and as a file."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from superopt.dtypes import dtype_text
from superopt.errors import InputError
from superopt.export.choice import choose
from superopt.export.limits import Limits
from superopt.export.names import Names, tuple_text
from superopt.export.reference import reference_lines
from superopt.ir import Graph, plain_name
from superopt.result import Result
from superopt.weights.kept import made_once
from superopt.weights.safetensors import FORMATS, read_tensors, tensors_as_bytes

__all__ = ["prepared_parts", "prepared_tensors"]

_TEXT = "Return what the function reads that is made of weights: once, computed in float64."

_LOAD = '''\
def load_prepared(path, device="cpu"):
    """Return what `prepare` returns, from a file of safetensors."""
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header, found = json.loads(data[8:start]), []
    for name in {names}:
        entry = header[name]
        begin, end = (start + place for place in entry["data_offsets"])
        dtype = getattr(torch, {formats}[entry["dtype"]])
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype)
        found.append(flat.view(entry["shape"]).to(device))
    return {result}
'''


def prepared_parts(goal: Graph, run: Graph, once: Graph, limits: Limits) -> list[str]:
    """Return the functions that make tensors of weights, or read them, and that put them in their places."""
    names = Names()
    ports = {port.name: names.take(port.name) for port in goal.inputs}
    made = {output.port.name: names.take(output.port.name) for output in once.outputs}
    known = ports | made
    weights = ", ".join(ports[port.name] for port in once.inputs)
    taken = tuple_text([known[port.name] for port in run.inputs])
    arranged = [
        f"def arranged({', '.join(ports.values())}):",
        '    """Return what the function takes in the place of these tensors."""',
        f"    {', '.join(made.values())} = prepare({weights})",
        f"    return {taken}",
    ]
    used = {output.port.dtype for output in once.outputs}
    formats = {name: dtype for name, dtype in FORMATS.items() if dtype_text_of(dtype) in used}
    load = _LOAD.format(
        names=tuple_text([repr(name) for name in made]),
        formats=repr(formats),
        result="found[0]" if len(made) == 1 else "tuple(found)",
    )
    prepare = reference_lines(once, "prepare", _TEXT, "torch.float64", limits=limits)
    return ["\n".join(prepare), "\n".join(arranged), load.rstrip("\n")]


def dtype_text_of(dtype: str) -> str:
    """Return the name of a dtype that torch calls so."""
    import torch

    return dtype_text(getattr(torch, dtype))


def prepared_tensors(
    result: Result, weights: Path, *, region: int | None = None, candidate: str | None = None
) -> bytes:
    """Return the file of what an exported module reads that is made of weights, given a file of these."""
    choice = choose(result, region, candidate)
    if choice.once is None:
        raise InputError(f"{choice.name}: {choice.candidate!r} reads nothing that is made of weights once")
    tensors, place = read_tensors(weights), str(weights)
    names: dict[str, str] = {}
    for name in tensors:
        plain = plain_name(name)
        if names.setdefault(plain, name) != name and any(port.name == plain for port in choice.once.inputs):
            raise InputError(f"{place!r} has {names[plain]!r} and {name!r}; {plain!r} may be either of them")
    found = {plain: tensors[name] for plain, name in names.items()}
    return tensors_as_bytes(_made(choice.once, found, place))


def _made(once: Graph, found: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    for port in once.inputs:
        tensor = found.get(port.name)
        if tensor is None:
            raise InputError(
                f"{place!r} has no weight {port.name!r}; it has {', '.join(sorted(found)) or 'none'}"
            )
        if tuple(tensor.shape) != once.shape(port) or dtype_text(tensor.dtype) != port.dtype:
            wanted = f"{port.dtype}{list(once.shape(port))}"
            told = f"{dtype_text(tensor.dtype)}{list(tensor.shape)}"
            raise InputError(f"{place!r}: {port.name!r} is {told}, and the program's is {wanted}")
    return dict(zip((output.port.name for output in once.outputs), made_once(once, found), strict=True))
