"""Inductor: the compiler that hosts superopt's regions, with patches of its settings."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, fx

from superopt.rivals.wide.choice import widened
from superopt.trace.capture.encoders import ENCODERS
from superopt.tune.background import Background
from superopt.tune.openmp import release_threads
from superopt.tune.random_numbers import same_random_numbers

__all__ = [
    "JOINT_PASS",
    "PARTITIONER",
    "PASS",
    "alone",
    "as_in_a_graph",
    "changed_settings",
    "compiled_by_inductor",
    "have_same_numbers",
    "settings_text",
    "table_for",
    "with_inductor",
]

T = TypeVar("T")

PASS = "post_grad_custom_pre_pass"
"""Inductor's setting for a pass over the graph: ours; a user's own pass changes no region by itself."""

JOINT_PASS = "joint_custom_post_pass"
"""Inductor's setting for a pass over forward and backward pass as one graph."""

PARTITIONER = "custom_partitioner_fn"
"""Inductor's setting for what splits such a graph into two."""

_ALONE = {PASS: None, JOINT_PASS: None, PARTITIONER: None, "fx_graph_cache": False, "cpp_wrapper": False}

# Settings that change no code, beside those that Inductor leaves out of the keys of its own cache.
_NO_CODE = ("force_disable_caches", PARTITIONER, "_")
_NO_CODE_BY_DEFAULT = (
    *("autoheuristic_log_path", "debug_dir_root", "profile", "torchinductor_worker_logpath", "worker_"),
    "quiesce_async_compile",
)


def changed_settings() -> dict[str, Any]:
    """Return the settings of Inductor that were changed for the whole program, and that change its code."""
    from torch._inductor import config

    known: Any = config
    with suppress(AttributeError):  # nothing of it is PyTorch's promise
        now = known._get_dict(ignored_prefixes=[*known._cache_config_ignore_prefix, *_NO_CODE])
        return {name: value for name, value in now.items() if value != known._config[name].default}
    return {}


def settings_text(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings of Inductor as a part of the keys of races, without the pass that is ours.

    A digest stands for all settings as they are by themselves: environment variables change them.
    """
    made = {name: _as_text(value) for name, value in sorted(settings.items()) if name != PASS}
    return {"by default": _defaults(), **made}


@cache
def _defaults() -> str:
    """Return a digest of the settings that change code and that nobody made in Python."""
    from torch._inductor import config

    known: Any = config
    with suppress(AttributeError):  # nothing of it is PyTorch's promise
        ignored = (*known._cache_config_ignore_prefix, *_NO_CODE, *_NO_CODE_BY_DEFAULT)
        told = {name: one.default for name, one in known._config.items() if not name.startswith(ignored)}
        plain = [f"{name} {value!r}" for name, value in sorted(told.items()) if type(value) is not object]
        return hashlib.sha256("\n".join(plain).encode()).hexdigest()[:12]
    return "unknown"


def _as_text(value: Any) -> str:
    """Return a value of a setting as text; a pass by its own name, which is that of every process."""
    several = value if isinstance(value, list | tuple) else (value,)
    if not any(hasattr(one, "uuid") for one in several):
        return str(value)
    return str([one.uuid() or one if hasattr(one, "uuid") else one for one in several])


def with_inductor(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    patches: Mapping[str, Any],
    *,
    boxed: bool = False,
    donated: Sequence[int] = (),
    compile_inner: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return what Inductor makes of a graph.

    It is called with the inputs or, boxed, with a list of them, which it empties: so what is read no more is
    freed during the call. Its code may write over the inputs at places that are `donated`. `compile_inner`
    compiles in place of Inductor what PyTorch made of the graph.
    """
    from torch._dynamo.utils import GmWrapper
    from torch._inductor.compile_fx import compile_fx

    table = table_for(module, patches)
    program: Any = GmWrapper(module, list) if boxed else module
    compile_inner = compile_inner or (partial(_donating, donated, len(inputs)) if donated else None)
    inner: dict[str, Any] = {} if compile_inner is None else {"inner_compile": compile_inner}
    compiled = compile_fx(program, inputs, config_patches=dict(patches), decompositions=table, **inner)
    assert callable(compiled)
    return compiled


def _donating(places: Sequence[int], count: int, module: Any, given: Sequence[Any], **settings: Any) -> Any:
    """Compile a graph as a backward pass, which may write over its inputs at some places of so many."""
    from torch._inductor.compile_fx import compile_fx_inner

    context = torch._guards.TracingContext.try_get()
    about: Any = getattr(context, "fw_metadata", None)
    if about is not None:
        held = len(given) - count  # tensors that the module holds come first
        about.bw_donated_idxs = [held + at for at in places]
    return compile_fx_inner(module, given, **{**settings, "is_backward": True, "is_inference": False})


class _Table(dict[Any, Any]):
    """Inductor's decompositions and ours, with a form that Inductor's cache can make a key of."""

    @classmethod
    def of(cls, patches: Mapping[str, Any]) -> Self:
        """Return the table under some of Inductor's settings, on which it depends."""
        from torch._inductor import config
        from torch._inductor.decomposition import select_decomp_table

        with config.patch(dict(patches)):
            return cls({**select_decomp_table(), **ENCODERS})

    def __reduce__(self) -> tuple[Any, ...]:
        return _Table.of, ({},)


def table_for(module: fx.GraphModule, patches: Mapping[str, Any]) -> dict[Any, Any] | None:
    """Return our decompositions for a graph of Dynamo's that calls whole encoder layers; None for others."""
    names = {operator._opname for operator in ENCODERS}
    called = {getattr(node.target, "__name__", "").partition(".")[0] for node in module.graph.nodes}
    return _Table.of(patches) if called & names else None


def compiled_by_inductor(
    module: fx.GraphModule, inputs: Sequence[Tensor], patches: Mapping[str, Any], **settings: Any
) -> Callable[..., Any]:
    """Return what Inductor makes of a region by itself, without kernels of ours; called inside `alone`.

    Calls in half precision are computed in float32 where that is faster.

    The settings are those of `with_inductor`.
    """
    copy = widened(fx.GraphModule(module, module.graph), inputs, patches)
    with torch.no_grad():
        return with_inductor(copy, inputs, {**patches, **_ALONE}, **settings)


def as_in_a_graph(
    module: fx.GraphModule, inputs: Sequence[Tensor], patches: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return what Inductor makes of a region by itself, called as the code of a larger graph calls its parts.

    On a CPU, what PyTorch does around the code of each graph, once in each call of it, takes longer than some
    regions. Where nothing but that code gives the same results, it stands alone.
    """
    codes: list[Callable[[list[Any]], Any]] = []

    def compile_inner(*given: Any, **settings: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx_inner

        codes.append(compile_fx_inner(*given, **settings))
        return codes[-1]

    whole = compiled_by_inductor(module, inputs, patches, compile_inner=compile_inner)
    if len(codes) != 1 or any(one.device.type != "cpu" for one in inputs):
        return whole
    [code] = codes

    def by_code(*given: Tensor) -> Any:
        return code(list(given))

    try:
        with torch.no_grad():
            return by_code if _are_alike(whole(*inputs), by_code(*inputs)) else whole
    except Exception:  # it was not compiled for these inputs as they are
        return whole


def _are_alike(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether tensors have the same numbers, shapes, dtypes and strides."""
    kinds, wanted = ([(one.shape, one.dtype, one.stride()) for one in several] for several in (some, others))
    return kinds == wanted and all(map(have_same_numbers, some, others))


def have_same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape hold the same numbers; NaN is the same as NaN."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def alone(work: Callable[[], T]) -> T:
    """Return what some work returns, done in a thread that knows nothing of the compilation under way.

    A pass runs amid modes that belong to the thread, and Inductor cannot be entered twice. What is timed
    there takes as long as in this thread, and meets the same settings of PyTorch. Random numbers that are
    drawn there are drawn again later.
    """
    context = copy_context()  # which holds the settings

    def without_gradients() -> T:
        with torch.no_grad(), same_random_numbers():
            return work()

    release_threads()
    return Background(lambda: context.run(without_gradients)).result()
