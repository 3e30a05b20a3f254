"""Calls of a kernel that reads what is kept: compiled code serves them, but where weights have changed."""

import gc
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from superopt.ir import parse_graph
from superopt.weights import sources
from superopt.weights.away import is_away
from superopt.weights.compiled_check import ask_python
from superopt.weights.division import divided
from superopt.weights.kept import Kept, KeptKernel, bytes_kept, keep_only

from ..folding import FOLDED

RIGHT = {"rtol": 1e-3, "atol": 1e-3}


class Inner:
    """Stands for a compiled kernel: it reads what a call brings, and the weights with the gain in them."""

    inputs, outputs = ("x", "folded_v3"), ("y",)

    def in_order(self, given: Sequence[Tensor]) -> list[Tensor]:
        x, made = given
        return [x @ made.t()]

    def prepared(self, given: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        return self.in_order


def kernel(*, ends: bool = False) -> KeptKernel:
    """Return a kernel that keeps what is made of weights, and may end to do so where they change often."""

    def whole(known: dict[str, Tensor]) -> dict[str, Tensor]:
        assert ends, "something can be kept"
        return {"y": right(list(known.values()))}

    goal = parse_graph(FOLDED)
    parts = divided(goal, (3,))
    assert tuple(port.name for port in parts.run.inputs) == Inner.inputs
    found = KeptKernel(goal, parts, Inner(), whole)
    found.kept.give_up_with(lambda why: None)
    return found


def layer() -> list[Tensor]:
    return [torch.randn(8, 512), torch.rand(512), torch.randn(256, 512)]


def right(given: Sequence[Tensor]) -> Tensor:
    x, g, w = given
    return (x * g) @ w.t()


def test_what_is_computed_whole_lies_as_a_kernel_leaves_it() -> None:
    """Before: a view of other strides was the result where nothing is kept, which Inductor refuses."""
    goal = parse_graph(FOLDED)

    def whole(known: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"y": right(list(known.values())).t().contiguous().t()}

    given = layer()
    given[2].share_memory_()  # others may write to it
    [made] = KeptKernel(goal, divided(goal, (3,)), Inner(), whole).in_order(given)
    assert made.is_contiguous()
    torch.testing.assert_close(made, right(given), **RIGHT)


@torch.no_grad()
@pytest.mark.parametrize("compiled", [True, False])
def test_all_calls_are_counted_and_python_looks_at_its_turns(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(sources, "compiled_check", lambda *unused: ask_python)
    found, given = kernel(), layer()
    run = found.prepared(given)
    [made] = found.kept.made
    for turn in range(1, 40):
        assert is_away(given[2]) is (turn > 8)
        torch.testing.assert_close(run(given)[0], right(given), **RIGHT)
        assert made.calls == turn
        served = made.quick(given) is not None  # it counts as a call, too
        assert served is (compiled and turn not in (7, 15))
        made._calls_left.value += served


@torch.no_grad()
def test_calls_of_a_race_by_compiled_code_do_not_count_in_a_program() -> None:
    found, given = kernel(), layer()
    found.kept._on_end = None  # a race is on
    run = found.prepared(given)
    for _ in range(50):
        run(given)
    assert not is_away(given[2])
    found.kept.give_up_with(lambda why: None)
    for turn in range(1, 40):
        torch.testing.assert_close(run(given)[0], right(given), **RIGHT)
        assert is_away(given[2]) is (turn >= 8)


@torch.no_grad()
def test_kernels_that_lost_keep_nothing_and_serve_all_the_same() -> None:
    gc.collect()
    before, layers = bytes_kept(), [layer(), layer()]
    chosen, lost = kernels = [kernel(), kernel()]
    ways = [one.prepared(given) for one, given in zip(kernels, layers, strict=True)]
    assert bytes_kept() - before == 2 * layers[0][2].nbytes
    keep_only([chosen], [*kernels, object()])
    assert lost.kept.bytes == 0 < chosen.kept.bytes
    for run, given in zip(ways, layers, strict=True):
        for _ in range(3):
            torch.testing.assert_close(run(given)[0], right(given), **RIGHT)
    keep_only([], kernels)
    assert bytes_kept() == before


@torch.no_grad()
def test_compiled_code_serves_weights_in_files_and_those_whose_data_was_read() -> None:
    found, given = kernel(), layer()
    run = found.prepared(given)
    for _ in range(20):
        run(given)
    [made] = found.kept.made
    assert is_away(given[2])
    assert made.quick(given) is not None
    given[2].data.abs()
    assert made.quick(given) is None  # the alias might have been written to
    run(given)
    assert made.quick(given) is not None
    alias = given[2].data
    for value in (3.0, 5.0):
        alias[4, 4] = value
        torch.testing.assert_close(run(given)[0], right(given), **RIGHT)


@torch.no_grad()
def test_each_layer_gets_what_is_made_of_its_own_weights() -> None:
    found, layers = kernel(), [layer() for _ in range(3)]
    run = found.prepared(layers[0])
    for turn in range(60):
        for given in layers:
            given[0] = torch.randn(8, 512)
            torch.testing.assert_close(run(given)[0], right(given), **RIGHT)
        if turn % 10 == 9:
            layers[turn % 3][1 + turn // 10 % 2].mul_(-1.5)
    first, second, _ = layers
    first[1], second[1] = second[1], first[1]  # the second weight stays
    for given in layers:
        torch.testing.assert_close(run(given)[0], right(given), **RIGHT)


@torch.no_grad()
def test_what_other_threads_write_is_seen_in_their_next_calls() -> None:
    found, given, faults = kernel(), layer(), list[BaseException]()
    run, lock = found.prepared(given), threading.Lock()

    def called(seed: int) -> None:
        try:
            for turn in range(60):
                with lock:  # a call while another thread writes may see either
                    if turn == 20:
                        given[1].mul_(-1) if seed else given[2].data[3, 5].fill_(9.0)
                    torch.testing.assert_close(run(given)[0], right(given), **RIGHT)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=called, args=(seed,)) for seed in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not faults


@torch.no_grad()
def test_nothing_that_a_call_reads_goes_while_other_threads_change_weights() -> None:
    found, given = kernel(ends=True), layer()
    run, ended = found.prepared(given), threading.Event()

    def change() -> None:
        while not ended.is_set():
            given[1].mul_(1)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            torch.testing.assert_close(run(given)[0], right(given), **RIGHT)
    finally:
        ended.set()
        thread.join()


def small_kept() -> tuple[Kept, list[str]]:
    """Return what keeps products of small weights in a program, and a list of why it does not."""
    found, ends = Kept(divided(parse_graph(FOLDED.replace("k=512 n=256", "k=8 n=4")), (3,)).once), list[str]()
    found.give_up_with(ends.append)
    return found, ends


@torch.no_grad()
def test_each_of_many_layers_keeps_its_own() -> None:
    """Before: more than 128 layers drove each other out, and were computed by torch from then on."""
    (kept, ends), layers = small_kept(), [[torch.rand(8), torch.randn(4, 8)] for _ in range(140)]
    first, *others = ([kept.of(given) for given in layers] for _ in range(3))
    assert None not in first
    for again in others:
        assert all(one is other for one, other in zip(first, again, strict=True))
    assert not ends


@torch.no_grad()
def test_weights_that_stay_are_kept_after_some_that_did_not() -> None:
    """Before: three models that lived for a few calls each ended it for all later ones."""
    kept, ends = small_kept()
    for _ in range(5):
        kept.of([torch.rand(8), torch.randn(4, 8)])
    assert ends == ["the weights change with nearly every call"]
    g, w = torch.rand(8), torch.randn(4, 8)
    found = [kept.of([g, w]) for _ in range(12)]
    assert found[:8] == [None] * 8
    [made] = found[-1] or ()
    torch.testing.assert_close(made, g * w)
    assert len(ends) == 1


def to_inference_mode(given: list[Tensor]) -> None:
    with torch.inference_mode():
        given[1] = given[1].clone()


UNWATCHED: dict[str, tuple[str, Callable[[list[Tensor]], object]]] = {
    "shared": ("cannot be detected", lambda given: given[1].share_memory_()),
    "of inference mode": ("cannot be detected", to_inference_mode),
    "with many aliases": ("too many tensors", lambda given: [given[1].data for _ in range(40)]),
}


@torch.no_grad()
@pytest.mark.parametrize(("said", "change"), UNWATCHED.values(), ids=list(UNWATCHED))
def test_weights_that_cannot_be_watched_leave_those_of_others_kept(
    said: str, change: Callable[[list[Tensor]], object]
) -> None:
    """Before: one such layer ended it for all layers and models of a plan."""
    (kept, ends), (one, other) = small_kept(), ([torch.rand(8), torch.randn(4, 8)] for _ in range(2))
    made = kept.of(one)
    assert made is not None
    assert kept.of(other) is not None  # the weights are watched from now on
    aliases = change(other)
    for _ in range(3):
        assert kept.of(other) is None
        assert kept.of(one) is made
    [why] = ends
    assert said in why
    del aliases


@torch.no_grad()
@pytest.mark.parametrize("short_lived", [False, True])
def test_what_changes_in_every_call_is_waited_for_longer_each_time(
    monkeypatch: pytest.MonkeyPatch, short_lived: bool
) -> None:
    """A write through `.data` leaves no trace but the numbers, and new weights may lie where old ones lay."""
    (kept, ends), found, tries = small_kept(), Kept._found, list[int]()
    monkeypatch.setattr(Kept, "_found", lambda *given: tries.append(1) or found(*given))
    g, w = torch.rand(8), torch.randn(4, 8)
    for _ in range(300):
        if short_lived:
            g, w = torch.rand(8), torch.randn(4, 8)
        w.data.add_(1)
        made = kept.of([g, w])
        if made is not None:
            torch.testing.assert_close(made[0], g * w)
    assert len(tries) <= 8
    assert ends == ["the weights change with nearly every call"]


@torch.no_grad()
def test_what_is_not_finite_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Before: such a region was computed by torch without a word."""
    kept, ends = small_kept()
    for _ in range(2):
        given = [torch.full((8,), torch.inf), torch.randn(4, 8)]
        assert [kept.of(given) for _ in range(3)] == [None] * 3
    assert [one.getMessage() for one in caplog.records] == [
        "folded_once: folded_v3 is not finite; it is computed in each call"
    ]
    assert not ends
