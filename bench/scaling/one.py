"""One search by one engine in a process of its own; prints what it did as one line of JSON."""

import hashlib
import json
import sys
import time
from functools import partial

from superopt.bench.programs import Programs
from superopt.frontier.engine import explore
from superopt.frontier.engine.engines import in_ranks, transport_named


def searched(engine: str, workers: int, variables: int, nodes: int) -> int:
    """Search and print; return the exit code."""
    transport = None if engine == "serial" else transport_named(engine)
    small = partial(explore, workers=1 if engine == "serial" else workers, transport=transport)
    small(Programs(variables=2, nodes=3))  # the warm-up
    space = Programs(variables=variables, nodes=nodes)
    began = time.perf_counter()
    found = small(space)
    seconds = time.perf_counter() - began
    assert found.stopped is None
    told = {
        "engine": engine,
        "seconds": seconds,
        "candidates": sum(level.candidates for level in found.levels),
        "states": len(found.rows),
        "width": found.rows.shape[1],
        "levels": [
            {
                "candidates": level.candidates,
                "new": level.new,
                "seconds": level.seconds,
                "busy_seconds": list(level.worker_seconds),
            }
            for level in found.levels[1:]
        ],
        "sha256": hashlib.sha256(found.rows.tobytes() + found.keys.tobytes()).hexdigest(),
    }
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    chosen = partial(searched, name, *map(int, numbers))
    sys.exit(in_ranks(name, int(numbers[0]), [], chosen))
