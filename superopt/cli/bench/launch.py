"""One launch of `superopt bench run FILE`, which runs this module as a script with a file of the request."""

import json
import sys
from pathlib import Path
from typing import Any

from superopt.bench.functions.launch import Request, measure_all
from superopt.cli.bench.run import declared_by
from superopt.cli.inputs import make_inputs, parse_inputs
from superopt.cli.userfile import to_stderr

__all__ = ["launch"]


def launch(place: Path) -> None:
    """Measure in this process what a request says."""
    request = Request(**json.loads(place.read_text(encoding="utf-8")))
    with to_stderr():
        measure_all(declared_by(Path(request.file)), request, _made)


def _made(text: str) -> tuple[Any, ...]:
    """Return inputs with random data for a text."""
    import torch

    from superopt.targets import pick_target
    from superopt.verify.floats.compare import typical

    device = pick_target("auto").torch_device
    like = tuple(
        torch.empty_like(one, device=device) if isinstance(one, torch.Tensor) else one
        for one in make_inputs(parse_inputs(text))
    )
    return typical(like)


if __name__ == "__main__":
    try:
        launch(Path(sys.argv[1]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
