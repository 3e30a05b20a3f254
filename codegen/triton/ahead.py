"""Ahead: a script that compiles one kernel for a named device and reports what it uses; no GPU needed.

It reads a request as JSON from its standard input and writes the report to its standard output. It is
a process of its own because a compiler may hang or crash, and imports nothing of superopt.
"""

import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Compile what standard input asks for."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    request = json.load(sys.stdin)
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
        report = {
            "shared_bytes": compiled.metadata.shared,
            "ptx_bytes": len(compiled.asm["ptx"]),
            "seconds": seconds,
            **_resources(compiled.asm["cubin"], Path(folder, "kernel.cubin")),
        }
    json.dump(report, sys.stdout)


def _resources(cubin: Any, path: Path) -> dict[str, int]:
    """Return the registers of a thread and the bytes that it spills, as the machine code has them."""
    import triton

    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [str(tool), "-res-usage", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    return {"registers": numbers["REG"], "spill_bytes": numbers["STACK"] + numbers["LOCAL"]}


if __name__ == "__main__":
    main()
