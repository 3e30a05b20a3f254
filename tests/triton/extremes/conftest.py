"""What kernels make of given numbers in Triton's interpreter."""

import pytest
import torch


@pytest.fixture
def given(interpreter):
    """Return what a kernel makes of a graph's steps on some numbers, and check it against float64."""

    def check(steps, inputs, *, axes, made, rtol=1e-6, **options):
        ports = [f"in {name}: {dtype}[{dims}]" for name, (dtype, dims, _) in inputs.items()]
        lines = ["graph given", f"axes {axes}", *ports, *steps]
        text = "\n".join([*lines, f"out o: f32[{made}] = {steps[-1].split()[0]}"])
        values = {name: numbers for name, (_, _, numbers) in inputs.items()}
        answer = interpreter.ask("given", text=text, values=values, **options)
        found, exact = (torch.tensor(answer[key], dtype=torch.float64).float() for key in ("found", "exact"))
        torch.testing.assert_close(found, exact, rtol=rtol, atol=1e-44, equal_nan=True)
        return found

    return check
