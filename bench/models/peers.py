"""Peers: other compilers of models, each of which is raced where it is installed and works."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any, get_args

from superopt.bench.harness.command import check_names, listed
from superopt.errors import InputError
from superopt.weights.division import Weights

__all__ = ["PEERS", "POLICIES", "Program", "peers_of"]

Program = Callable[..., Any]
"""A model, or what a compiler makes of it."""


_PRECISIONS = {"torch.float32": "f32", "torch.bfloat16": "bf16", "torch.float16": "f16"}  # of OpenVINO


def _freezing(model: Any) -> Program:
    """Inductor with its weights folded in, and linears of one input joined."""
    import torch

    return torch.compile(model, options={"freezing": True, "cpp.enable_concat_linear": True})


def _max_autotune(model: Any) -> Program:
    """Inductor with kernels of its own raced against the libraries'."""
    import torch

    return torch.compile(model, mode="max-autotune")


def _openvino(model: Any) -> Program:
    """OpenVINO as a backend of torch.compile, told to compute in the dtype of the model, as the others do.

    Without `aot_autograd` it fails on decodes, whose caches are written in place.
    """
    import openvino.torch  # noqa: F401  # registers the backend
    import torch

    hint = _PRECISIONS[str(next(model.parameters()).dtype)]
    config = {"INFERENCE_PRECISION_HINT": hint}
    options: dict[str, Any] = {"device": "CPU", "config": config, "aot_autograd": True}
    return torch.compile(model, backend="openvino", options=options)


def _onnx_runtime(model: Any) -> Program:
    """ONNX Runtime on the model as PyTorch exports it, on as many threads as PyTorch has."""
    import onnxruntime
    import onnxscript  # noqa: F401  # the export needs it
    import torch

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    # Its threads wait by running, which is fair within a call, but not while the others have their turns.
    settings.add_session_config_entry("session.force_spinning_stop", "1")

    def session(told: Any) -> Any:
        return onnxruntime.InferenceSession(told, sess_options=settings, providers=["CPUExecutionProvider"])

    exported: Any = None

    def program(**inputs: Any) -> Any:
        nonlocal exported
        if exported is None:
            exported = torch.onnx.export(model, (), kwargs=inputs, dynamo=True, verbose=False)
            exported.initialize_inference_session(session)
        return exported(**inputs)

    return program


def _torchao(model: Any) -> Program:
    """The same weights of eight bits as torchao keeps them, compiled by Inductor."""
    import copy

    import torch
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    from superopt.bench.models.int8 import with_whole_weights

    whole = with_whole_weights(copy.deepcopy(model))
    quantize_(whole, Int8WeightOnlyConfig())
    return torch.compile(whole)


PEERS: Mapping[str, Callable[[Any], Program]] = {
    "freezing": _freezing,
    "max-autotune": _max_autotune,
    "openvino": _openvino,
    "onnx-runtime": _onnx_runtime,
    "torchao": _torchao,
}
"""What makes each peer of a model; it raises whatever stops it."""


POLICIES = get_args(Weights)
"""superopt with each policy of weights, which may race as well, though not among all peers."""


def peers_of(options: argparse.Namespace) -> list[str]:
    """Return the names of the peers that were asked for: `all`, or some by commas."""
    names = list(PEERS) if options.peers == "all" else listed(options.peers) if options.peers else []
    check_names("--peers", names, [*PEERS, *POLICIES])
    if names and options.train:
        raise InputError("--peers are for inference: freezing and the runtimes make no gradients")
    return names
