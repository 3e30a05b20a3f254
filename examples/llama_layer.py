"""A Llama-style decoder layer as a plain nn.Module, traced: one region of algebra, no opaque operator.

python examples/llama_layer.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DecoderLayer(nn.Module):
    """Norm, q/k/v, RoPE, causal grouped-query attention, output, residual, norm, gated MLP, residual."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_size: int, hidden: int) -> None:
        super().__init__()
        self.head_size = head_size
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, heads * head_size, bias=False)
        self.k = nn.Linear(width, kv_heads * head_size, bias=False)
        self.v = nn.Linear(width, kv_heads * head_size, bias=False)
        self.o = nn.Linear(heads * head_size, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states after this layer; x is [batch, tokens, width]."""
        h = self.attention_norm(x)
        q, k, v = (self.split_heads(project(h)) for project in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(h.transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def split_heads(self, x: Tensor) -> Tensor:
        """Return [batch, tokens, heads * size] as [batch, heads, tokens, size]."""
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


def rotate(x: Tensor, base: float = 10000.0) -> Tensor:
    """Return queries or keys with rotary position embeddings, first half with second half."""
    tokens, size = x.shape[-2:]
    frequency = base ** (torch.arange(0, size, 2, device=x.device) / -size)
    angle = torch.arange(tokens, device=x.device)[:, None] * frequency
    cos, sin = (torch.cat([part, part], -1).to(x.dtype) for part in (angle.cos(), angle.sin()))
    x1, x2 = x.chunk(2, -1)
    return x * cos + torch.cat([-x2, x1], -1) * sin


def main() -> None:
    """Trace a layer of the size of Llama 3 8B and print what came out."""
    from superopt.trace import trace

    with torch.device("meta"):
        layer = DecoderLayer(width=4096, heads=32, kv_heads=8, head_size=128, hidden=14336).half()
        x = torch.empty(1, 2048, 4096, dtype=torch.float16)
    print(trace(layer, x).graph)


if __name__ == "__main__":
    main()
