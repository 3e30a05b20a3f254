"""A training loop whose forward and backward passes are compiled by superopt's backend.

python examples/training_step.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GatedMlp(nn.Module):
    """RMS norm and a gated MLP around which the input is added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input and what the MLP adds to it."""
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def main() -> None:
    """Train a small model to reverse the order of features, and print the loss as it falls."""
    torch.manual_seed(0)
    width = 64
    model = nn.Sequential(GatedMlp(width), GatedMlp(width), nn.Linear(width, width))
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 40})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(200):
        x = torch.randn(32, width)
        loss = F.mse_loss(compiled(x), x.flip(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == 199:
            print(f"step {step}: loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
