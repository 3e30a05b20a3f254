"""C++: kernels as one source with its header, how it is compiled, and the launcher that calls them."""

from superopt.codegen.cpp import Argument, emit, lower_kernel
from superopt.codegen.cpp.compile import FLAGS, RUNTIME, runtime_text
from superopt.codegen.cpp.launch import PART
from superopt.codegen.statements import KernelProgram
from superopt.errors import InputError
from superopt.export.choice import Choice
from superopt.export.launcher import Held, Launcher
from superopt.export.names import wrapped
from superopt.ir.mugraph import Call
from superopt.ir.windows.apart import read_as_one

__all__ = ["IMPORTS", "cpp_parts"]

IMPORTS = (
    "import ctypes", "import functools", "import json", "import math", "import os", "import shutil",
    "import subprocess", "import tempfile", "from array import array", "from pathlib import Path", "",
    "import torch", "from torch.nn import functional as F",
)  # fmt: skip

_INCLUDE = f'#include "{RUNTIME}"'

_LOADING = '''\
@functools.cache
def _library():
    """Compile the kernels and load them."""
    wanted = filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++"))
    commands = (one.split() for one in wanted)  # CXX may have arguments, as in "ccache g++"
    compiler = next((one for one in commands if one and shutil.which(one[0])), None)
    if compiler is None:
        raise RuntimeError("no C++ compiler: install g++ or clang++, or set CXX")
    with tempfile.TemporaryDirectory() as folder:
        text, built, library = (Path(folder, name) for name in ("kernels.cpp", "kernels.o", "kernels.so"))
        text.write_text(_HEADER + _KERNELS)
        subprocess.run([*compiler, *_FLAGS, "-c", text, "-o", built], check=True)
        version = subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True).stdout
        # Clang needs the flag; others use the library that the process has.
        openmp = ["-fopenmp"] if "clang" in version else []
        subprocess.run([*compiler, "-shared", *openmp, built, "-o", library], check=True)
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:  # the process has no OpenMP library yet
            if "GOMP" not in str(error):
                raise
            ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(library))


def _run(kernel, *arguments):
    """Run a kernel on a record of its arguments, eight bytes each: pointers of tensors, and numbers."""
    record = array("q", [one.data_ptr() if isinstance(one, torch.Tensor) else one for one in arguments])
    _library()[kernel](ctypes.c_void_p(record.buffer_info()[0]))
'''


def cpp_parts(choice: Choice) -> tuple[list[str], Launcher]:
    """Return the kernels and how they are compiled, and the launcher."""
    mugraph = choice.mugraph
    joined = read_as_one(mugraph.graph)
    if joined:
        names = ", ".join(mugraph.graph.inputs[at].name for at in sorted(joined))
        raise InputError(f"{choice.name} reads dimensions of {names} as one; export another candidate")
    multiples = {split.inner: PART for split in mugraph.splits}
    launcher = _CppLauncher(choice, taken=("_run", "_library"), multiples=multiples)
    sources: list[str] = []
    for at, kernel in enumerate(mugraph.kernels):
        if isinstance(kernel, Call):
            launcher.call(kernel, ordered=True)
            continue
        program = lower_kernel(mugraph, at)
        source = emit(program, choice.configs[at], choice.limits.lengths(mugraph))
        sources.append(source.code.replace(_INCLUDE, "").strip("\n"))
        launcher.launch(program, source.arguments)
    flags = ["_FLAGS = (", *(f'    "{flag}",' for flag in FLAGS), ")"]
    parts = ["\n".join(flags), _raw("_HEADER", runtime_text()), _raw("_KERNELS", "\n\n".join(sources))]
    return ([*parts, _LOADING.rstrip("\n")] if sources else []), launcher


def _raw(name: str, text: str) -> str:
    assert "'''" not in text
    return f"{name} = r'''\n{text.strip(chr(10))}\n'''"


class _CppLauncher(Launcher):
    """A launcher of C++ kernels: tensors are allocated in the shapes they leave in."""

    def launch(self, program: KernelProgram, arguments: tuple[Argument, ...]) -> None:
        """Add the lines that allocate what a kernel writes and run it."""
        written = [self.allocate(tensor, tensor.axes) for tensor in program.stores]
        loads = [self.held[tensor.value] for tensor in program.loads]
        groups: dict[str, list[str]] = {}
        for one in arguments:
            groups.setdefault(one.kind, []).append(self._argument(one, loads, written))
        self.lines.append(f'_run("{program.name}",')
        for items in groups.values():
            self.lines += wrapped(items)
        self.lines.append(")")
        for tensor, held in zip(program.stores, written, strict=True):
            self.keep(tensor, held)

    def _argument(self, one: Argument, loads: list[Held], written: list[Held]) -> str:
        if one.kind == "threads":
            return "torch.get_num_threads()"
        if one.kind == "size":
            return self.sizes[one.axis]
        held = (written if one.kind == "store" or one.stored else loads)[one.position]
        return held.strides[one.axis] if one.kind == "stride" else held.variable
