"""Rivals: the ways of PyTorch to compute a function, or a region of one, which ours must beat."""

import inspect
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from superopt.errors import first_line
from superopt.ir import Program
from superopt.targets import Target

__all__ = [
    "EAGER",
    "INDUCTOR",
    "LIBRARY_CALLS",
    "PEERS",
    "RIVALS",
    "Function",
    "Rival",
    "apart_from_others",
    "load_compilers",
    "products_of",
    "rivals_of",
]

log = logging.getLogger("superopt")

Function = Callable[..., Any]

_COMPILER_FAILED = "C++ compile error"  # what Inductor says then
_FEW_PRODUCTS = 3  # a program has about one kernel of Inductor's more than products of matrices

Maker = Callable[[Any, Sequence[tuple[Any, ...]], Mapping[str, Any]], Function]
"""Makes a contender of a function, for inputs several times over, with some options of Inductor's."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A way in which PyTorch computes a function, or a lower bound of its time."""

    name: str
    make: Maker
    compiles: bool = True  # whether it needs a compiler, which takes a while and may fail
    tunes_products: bool = False  # whether on a CPU it differs from others in products of matrices alone


def _by_torch_compile(mode: str | None) -> Maker:
    """Return what compiles a function in a mode of torch.compile.

    Never with CUDA graphs of its own: they copy the inputs at each call, cannot be part of the graphs that
    a race makes of all contenders alike, and give out memory that the next call overwrites.
    """

    def compiled(function: Function, copies: object, options: object) -> Function:
        import torch

        return torch.compile(function, mode=mode, **apart_from_others())

    return compiled


def apart_from_others() -> dict[str, Any]:
    """Return the arguments by which what torch.compile makes does not count against the user's own limits.

    There are none in older versions.
    """
    import torch

    known = inspect.signature(torch.compile).parameters
    return {"isolate_recompiles": True} if "isolate_recompiles" in known else {}


def _by_inductor(module: Any, copies: Sequence[tuple[Any, ...]], options: Mapping[str, Any]) -> Function:
    from superopt.rivals.inductor import as_in_a_graph

    return as_in_a_graph(module, copies[0], options)


def _by_library(module: Any, copies: Sequence[tuple[Any, ...]], options: object) -> Function:
    from superopt.rivals.library_calls import LibraryCalls

    return LibraryCalls(module, copies)


EAGER = Rival("eager", lambda function, copies, options: function, compiles=False)
LIBRARY_CALLS = Rival("library calls", _by_library, compiles=False)
INDUCTOR = Rival("inductor", _by_inductor)

RIVALS = (
    EAGER,
    Rival("torch.compile", _by_torch_compile(None)),
    Rival("torch.compile max-autotune", _by_torch_compile("max-autotune-no-cudagraphs"), tunes_products=True),
)
"""The rivals of a program."""


PEERS = {one.name: one for one in RIVALS}
"""The rivals of a program by name."""


def load_compilers() -> None:
    """Import what torch.compile needs, which takes seconds: its first call is that much shorter."""
    with suppress(Exception):  # torch.compile says so
        for name in ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codegen.cpp"):
            import_module(name)


def _trust_processor() -> None:
    """Let Inductor believe what the processor says of its vector instructions.

    Else it would compile programs for 5 to 10 seconds to see whether the compiler knows them as well. Where
    it does not, no kernel compiles, and Inductor looks after all.
    """
    from torch._inductor import config, cpu_vec_isa

    if config.cpp.vec_isa_ok is None and not cpu_vec_isa.valid_vec_isa_list.cache_info().currsize:
        with config.patch({"cpp.vec_isa_ok": True}):
            cpu_vec_isa.valid_vec_isa_list()


def _doubt_processor() -> None:
    """Let Inductor see for itself again which vector instructions there are."""
    with suppress(Exception):  # nothing of it is PyTorch's promise
        from torch._inductor import cpu_vec_isa

        cpu_vec_isa.valid_vec_isa_list.cache_clear()
        for one in (cpu_vec_isa.VecAVX512, cpu_vec_isa.VecAVX512VNNI, cpu_vec_isa.VecAMX):
            one.__bool__.cache_clear()


@contextmanager
def _at_these_sizes() -> Iterator[None]:
    """Let torch.compile take the sizes of a call as they are, whatever others it has seen of the function.

    That is what a user has at these sizes. At a second size it would compile for all sizes, and after eight
    not at all. What is called at other sizes after the race is compiled as ever.
    """
    from torch._dynamo import config

    with config.patch({"automatic_dynamic_shapes": False, "recompile_limit": sys.maxsize}):
        yield


@contextmanager
def _without_header(products: int) -> Iterator[None]:
    """Let Inductor not compile its header for a few kernels alone; where there is a compiled one, it serves.

    Compiling the header takes as long as compiling five kernels that read it.
    """
    from torch._inductor import config
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if products > _FEW_PRODUCTS or Path(default_cache_dir(), "precompiled_headers").exists():
        yield
    else:
        with config.patch({"cpp_cache_precompile_headers": False}):
            yield


def _hangs() -> bool:
    from superopt.codegen.children import Children
    from superopt.codegen.cpp.compile import compiler_ends
    from superopt.codegen.errors import NoCompilerError

    with suppress(NoCompilerError), Children() as children:
        return not compiler_ends(children)
    return False


@contextmanager
def _same_compiler(target: Target) -> Iterator[None]:
    """Let Inductor use the compiler of our kernels: for one in CXX that hangs, it would wait without end."""
    named = os.environ.get("CXX")
    if not named or target.torch_device != "cpu":
        yield
        return
    from torch._inductor import config

    from superopt.codegen.cpp.compile import find_compiler
    from superopt.codegen.errors import NoCompilerError

    try:
        found = find_compiler()
    except NoCompilerError:
        yield
        return
    with TemporaryDirectory(prefix="superopt-") as folder:
        program = found.path
        if found.arguments:  # Inductor takes one word
            program = str(Path(folder) / "compiler")
            Path(program).write_text(f'#!/bin/sh\nexec {shlex.join(found.command)} "$@"\n')
            Path(program).chmod(0o700)
        with config.patch({"cpp.cxx": (None, program)}):
            yield


def rivals_of(
    function: Function,
    inputs: Sequence[Any],
    target: Target,
    *,
    compiled: bool,
    products: int,
    tell: Callable[[str], None],
) -> dict[str, Function]:
    """Return the contenders that race on a target, each called once; with `compiled`, compilers too.

    `products` says how many products of matrices the function may have.
    """
    found: dict[str, Function] = {}
    for one in RIVALS:
        if one.compiles and not compiled:
            continue
        if one.tunes_products and not products and target.torch_device == "cpu":
            continue
        if one.compiles and target.torch_device == "cpu" and _hangs():
            log.warning("%s does not race: the C++ compiler hangs", one.name)
            continue
        if one.compiles:
            tell(one.name)
        try:
            contender = _made(one, function, tuple(inputs), target, products)
        except Exception as error:  # no fault of a compiler may stop the race
            log.warning("%s does not race: %s", one.name, first_line(error))
            continue
        found[one.name] = contender
    return found


def _made(
    rival: Rival, function: Function, inputs: tuple[Any, ...], target: Target, products: int
) -> Function:
    """Return a contender that was called once."""
    contender = rival.make(function, [inputs], {})
    if not rival.compiles:
        return contender
    if target.torch_device != "cpu":
        with _at_these_sizes():
            contender(*inputs)
        return contender
    with _at_these_sizes(), _same_compiler(target), _without_header(products):
        with suppress(Exception):  # nothing of it is PyTorch's promise
            _trust_processor()
        try:
            contender(*inputs)
        except Exception as error:
            if _COMPILER_FAILED not in str(error):
                raise
            _doubt_processor()
            contender(*inputs)
    return contender


def products_of(program: Program) -> int:
    """Return how many products of matrices a program may have, as what is opaque in it may."""
    steps = [step for region in program.regions for step in region.graph.steps]
    return len(program.opaque) + sum(step.op == "contract" for step in steps)
