"""Equivalent: whether two PyTorch programs compute the same, by algebra and by floats."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from superopt.errors import GraphError, InputError, SuperoptError
from superopt.ir import Graph
from superopt.verify.decide import decide
from superopt.verify.programs.proof import Proof, prove
from superopt.verify.programs.results import Branch, Made, Structure, difference
from superopt.verify.programs.sides import Program, Side
from superopt.verify.seeds import fresh_seed
from superopt.verify.verdict import Verdict

__all__ = ["equivalent"]


def equivalent(
    f: Program,
    g: Program,
    *inputs: Any,
    trials: int | None = None,
    floats: bool = True,
    seed: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verdict:
    """Return whether two functions, modules or Graphs compute the same from the same inputs.

    The inputs are examples, matched by position: their shapes, dtypes and numbers count, not their
    data. The verdict is about exact algebra, with a bound on the chance of error; with `floats`,
    both are also run, and unequal ones are told apart by a concrete counterexample where one is
    found. What is returned besides tensors has to be the same too. Graphs need no inputs. A `seed`
    repeats a verdict; without one the random tests are fresh. `progress` is told what is being done.
    """
    start = perf_counter()
    seed = fresh_seed() if seed is None else seed
    report = progress or (lambda text: None)
    if isinstance(f, Graph) != isinstance(g, Graph) and not inputs:
        raise InputError("a Graph and a function: give example inputs for the function")
    report("tracing")
    left, right = Side(f, inputs), Side(g, inputs)
    right.match_inputs(left)
    found = _different_results(left, right)
    if found is not None:
        text, sure = found
        outcome = Verdict("different" if sure else "unknown", notes=(text,), seed=seed)
        return replace(outcome, seconds=perf_counter() - start)
    if not _tensors(left.structure):
        same = Verdict("equal", error_bound=0.0, notes=("both programs return the same, and no tensor",))
        return replace(same, seed=seed, seconds=perf_counter() - start)
    proof = _by_algebra(left, right, trials, seed, report)
    verdict = proof.verdict
    if not verdict.equal and any(_reads_unwritten(side, seed) for side in (left, right)):
        called = ", ".join(sorted({*left.unwritten, *right.unwritten}))
        note = f"no proof: what a program returns depends on memory that it never wrote ({called})"
        verdict = Verdict("unknown", notes=(note,))
    elif floats:
        verdict = decide(left, right, proof, seed, report)
    return replace(verdict, seed=seed, seconds=perf_counter() - start)


def _by_algebra(
    left: Side, right: Side, trials: int | None, seed: int, progress: Callable[[str], None]
) -> Proof:
    """Return what the algebra says of two programs that return the same tensors."""
    if left.random or right.random:
        drawn = ", ".join(sorted({*left.random, *right.random}))
        return Proof(Verdict("unknown", notes=(f"no proof: the programs draw random numbers ({drawn})",)))
    reason = left.unreadable or right.unreadable
    if left.whole is None or right.whole is None:
        return Proof(Verdict("unknown", notes=(f"no proof: {reason}",)))
    constants = frozenset(left.constants)
    try:
        second = right.named_as(left)
        return prove(
            left.whole,
            second,
            (constants, frozenset(right.constants)),
            trials=trials,
            seed=seed,
            titles=right.titles | left.titles,
            progress=progress,
        )
    except (GraphError, InputError, SuperoptError) as error:
        return Proof(Verdict("unknown", notes=(f"no proof: {error}",)))


def _reads_unwritten(side: Side, seed: int) -> bool:
    """Whether a program may return what it never wrote: then two runs of it need not be equal."""
    if not side.unwritten or side.whole is None:
        return False
    again = tuple(
        replace(call, signature=f"{call.signature} again") if call.unwritten else call
        for call in side.whole.calls
    )
    constants = frozenset(side.constants)
    other = replace(side.whole, calls=again)
    try:
        proof = prove(
            side.whole,
            other,
            (constants, constants),
            trials=None,
            seed=seed,
            titles=side.titles,
            progress=lambda text: None,
        )
    except SuperoptError:
        return True
    return not proof.verdict.equal


def _different_results(left: Side, right: Side) -> tuple[str, bool] | None:
    """Return how the results differ apart from the numbers in their tensors, and whether they surely do."""
    if left.is_graph == right.is_graph:
        return difference(left.structure, right.structure)
    # A Graph returns tensors and no structure.
    first, second = (Branch(tuple, tuple(_tensors(side.structure))) for side in (left, right))
    return difference(first, second)


def _tensors(structure: Structure) -> list[tuple[str, Structure]]:
    found: list[Structure] = []

    def collect(part: Structure) -> None:
        if isinstance(part, Made):
            found.append(part)
        elif isinstance(part, Branch):
            for _, inner in part.parts:
                collect(inner)

    collect(structure)
    return [(f"[{i}]", one) for i, one in enumerate(found)]
