"""A Llama-style block by torch.compile with superopt as its backend, and what became of each region.

python examples/llama_block.py
"""

import torch
from llama_layer import DecoderLayer

import superopt


def main() -> None:
    """Compile a block, check it, and say what superopt computes of it."""
    torch.manual_seed(0)
    block = DecoderLayer(width=256, heads=8, kv_heads=4, head_size=32, hidden=688)
    x = torch.randn(1, 32, 256)
    options = {"budget_s": 40}
    compiled = torch.compile(block, backend="superopt", options=options)
    with torch.no_grad():
        error = float((compiled(x) - block(x)).abs().max())
        print(f"largest difference from eager PyTorch: {error:.1e}")
        print(superopt.explain(block, x, options=options))


if __name__ == "__main__":
    main()
