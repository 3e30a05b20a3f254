"""Ahead: a server that compiles kernels for a named device and reports what each uses; no GPU needed.

It reads one request as JSON from each line of its standard input and answers one line each; its first
line, before any request, says that it is ready. It is a process of its own because a compiler may hang
or crash, and imports nothing of superopt.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Answer the requests of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints must not mix with the answers
    import triton.compiler  # noqa: F401 - the first request should not wait for it

    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"report": _compiled(json.loads(line))}
        except (Exception, SystemExit) as error:  # compilers raise all kinds
            answer = {"error": _one_line(error)}
        print(json.dumps(answer), file=answers, flush=True)


def _compiled(request: dict[str, Any]) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.py")
        path.write_text(request["text"])
        spec = importlib.util.spec_from_file_location("kernel", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = getattr(module, request["name"])
        source = ASTSource(
            fn=kernel,
            signature=request["signature"],
            constexprs=request["constants"],
            attrs={(at,): [["tt.divisibility", 16]] for at in request["divisible"]},
        )
        target = GPUTarget("cuda", request["capability"], 32)
        start = time.perf_counter()
        compiled = triton.compile(source, target=target, options=request["options"])
        seconds = time.perf_counter() - start
        return {
            "shared_bytes": compiled.metadata.shared,
            "seconds": seconds,
            "tensor_copies": compiled.asm["ptx"].count("cp.async.bulk.tensor"),
            **_resources(compiled.asm["cubin"], Path(folder, "kernel.cubin")),
            **(_texts(compiled.asm["ptx"], Path(folder, "kernel.cubin")) if request["texts"] else {}),
        }


def _resources(cubin: Any, path: Path) -> dict[str, int]:
    """Return the registers of a thread and the bytes that it spills, as the machine code has them."""
    path.write_bytes(cubin)
    text = _dumped("-res-usage", path)
    numbers = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    return {"registers": numbers["REG"], "spill_bytes": numbers["STACK"] + numbers["LOCAL"]}


def _texts(ptx: str, path: Path) -> dict[str, str]:
    """Return the assembly of a kernel, as the compiler wrote it and as the machine has it."""
    return {"ptx": ptx, "sass": _dumped("-sass", path)}


def _dumped(option: str, path: Path) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([str(tool), option, str(path)], capture_output=True, text=True, check=True).stdout


def _one_line(error: BaseException) -> str:
    """Return an error's kind and the last line it says: compilers print the source above it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


if __name__ == "__main__":
    main()
