"""Models of the transformers library, and convolutional nets: our kernels inside them agree with eager.

Weights are random and models tiny. Every region is taken, by its default kernels, whatever its speed.
"""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from superopt.backend import region_plan
from superopt.backend.decision import Decision

from ..conftest import Host, troubles
from .agreement import Trio

pytest.importorskip("transformers", reason="the extra `models` is not installed")

from superopt.bench.zoo import MODELS, Sizes, build, inputs_of

TINY = Sizes(
    width=32, inner=64, heads=4, kv_heads=2, layers=1, vocabulary=64, rows=2, tokens=8, image=32, patch=8
)
FAST = ("llama", "convnext")
LEARNING = ("llama", "gpt2", "bert", "vit")
GROWING = ("llama", "qwen3", "mistral", "gpt2")
OPTIONS: dict[str, Any] = {"cache": False, "inductor": {"fx_graph_cache": False}}

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("quick_kernels"),
]


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = build(name, TINY)
    if name == "mixtral":  # by default it calls what PyTorch does not have in float64
        model.set_experts_implementation("batched_mm")
    return model


def checked(name: str, backend: Any, *, gradients: bool = False, **more: Any) -> None:
    trio = Trio(model_of(name), lambda model: torch.compile(model, backend=backend, **more))
    torch.manual_seed(1)
    trio.check(gradients=gradients, **inputs_of(name, TINY))


@pytest.mark.parametrize("name", FAST)
def test_regions_computed_by_torch(
    name: str, taken: list[Decision], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(region_plan.RegionPlan, "by_kernels", lambda self, known: self.by_torch(known))
    host = Host()
    checked(name, host)
    assert host.calls >= len(taken) > 0
    assert not troubles(caplog)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_regions_computed_by_kernels(
    name: str, taken: list[Decision], caplog: pytest.LogCaptureFixture
) -> None:
    host = Host()
    checked(name, host)
    assert taken
    assert host.calls >= len(taken)
    assert not troubles(caplog)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_gradients_computed_by_kernels(
    name: str, taken: list[Decision], caplog: pytest.LogCaptureFixture
) -> None:
    host = Host()
    checked(name, host, gradients=True)
    assert host.calls >= len(taken) > 1
    assert not troubles(caplog)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_inductor_around_the_kernels(
    name: str, taken: list[Decision], caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checked(name, "superopt", options=OPTIONS)
    assert not troubles(caplog)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_inductor_around_the_kernels_of_gradients(
    name: str, taken: list[Decision], caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checked(name, "superopt", gradients=True, options=OPTIONS)
    assert taken
    assert not troubles(caplog)


def generated(name: str, host: Host | None, tokens: int, **more: Any) -> torch.Tensor:
    """Return what a model says after four tokens; its forward pass compiled where there is a host."""
    torch.manual_seed(0)
    model: Any = build(name, TINY, head=True)
    if host is not None:
        model.forward = torch.compile(model.forward, backend=host)
    prompt = torch.randint(3, TINY.vocabulary, (1, 4), generator=torch.Generator().manual_seed(3))
    made = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
        **more,
    )
    assert isinstance(made, torch.Tensor)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", GROWING)
def test_a_growing_cache_compiles_a_few_graphs(
    name: str, cache: str | None, taken: list[Decision], caplog: pytest.LogCaptureFixture
) -> None:
    """A prompt, a first token, and tokens of any number after it: not a graph for each."""
    more = {} if cache is None else {"cache_implementation": cache, "disable_compile": True}
    counts = []
    for tokens in (6, 20):
        torch._dynamo.reset()
        host = Host()
        made = generated(name, host, tokens, **more)
        assert torch.equal(made, generated(name, None, tokens, **more))
        counts.append(len(host.graphs))
        assert host.calls > 0
    assert counts[1] <= counts[0] <= 4, counts
    assert not troubles(caplog)
