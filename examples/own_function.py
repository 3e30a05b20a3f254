"""A function of one's own: searched, optimized, saved, and its kernels as a module that runs alone.

python examples/own_function.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import superopt
from superopt.export import export_module
from superopt.result import read_result


def gate(x: Tensor, g: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """Return a gated linear layer of normalized rows."""
    norm = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g
    return F.silu(norm @ w1) * (norm @ w2)


def main() -> None:
    """Find, race, save, export."""
    torch.manual_seed(0)
    inputs = torch.randn(8, 256), torch.randn(256), torch.randn(256, 512), torch.randn(256, 512)
    found = superopt.search(gate, *inputs)
    print(f"{len(found.regions[0].found)} equal programs, complete: {found.complete}")

    best = superopt.optimize(gate, *inputs, options=superopt.OptimizeOptions(seconds=2))
    print(best.explain())
    error = float((best(*inputs) - gate(*inputs)).abs().max())
    print(f"largest difference from eager PyTorch: {error:.1e}")

    with tempfile.TemporaryDirectory() as folder:
        result, module = Path(folder, "gate.json"), Path(folder, "kernels.py")
        best.save(result)
        again = superopt.load(result, gate)
        assert torch.equal(again(*inputs), best(*inputs))
        first = best.regions[0].candidates[0].id
        module.write_text(export_module(read_result(result), candidate=first), encoding="utf-8")
        print(f"{module.name}, which needs no superopt, against plain PyTorch:", flush=True)
        subprocess.run([sys.executable, module], check=True)


if __name__ == "__main__":
    main()
