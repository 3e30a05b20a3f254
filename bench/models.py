"""Models of the transformers library: a step by eager PyTorch, by Inductor, and by superopt's backend.

    python -m bench.models --json OUT                         all models, inference
    python -m bench.models --models llama,bert --train        forward and backward
    python -m bench.models --list

Models are small and built here from configurations, with random weights; nothing is downloaded. Each
runs in a process of its own with empty caches ("cold"), and again in another with what the first left
("warm"). Times of a step are medians of interleaved calls; a speedup above 1 means that superopt is
faster than Inductor. "Covered" is the share of the operations of all matmuls that superopt computes.
Needs the extra `models`. Let nothing else run meanwhile.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["MODELS", "main"]

VERSION = 1
_TEXT: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}
_GROUPED: dict[str, Any] = {**_TEXT, "num_key_value_heads": 4}
_ROWS, _TOKENS = 1, 64


def _decoder(name: str, **more: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """Return what builds a text model, by the name of its family, and the inputs of a step."""

    def build() -> tuple[Any, dict[str, Any]]:
        import torch
        import transformers

        config = getattr(transformers, f"{name}Config")(**more)
        model = getattr(transformers, f"{name}Model", None) or getattr(transformers, f"{name}EncoderModel")
        tokens = torch.randint(0, config.vocab_size, (_ROWS, _TOKENS))
        inputs: dict[str, Any] = {"input_ids": tokens}
        if hasattr(config, "use_cache") and name != "Bert":
            inputs["use_cache"] = False
        return model(config), inputs

    return build


def _t5() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=1024, d_model=512, d_ff=1408, d_kv=64, num_layers=4, num_heads=8)
    return T5EncoderModel(config), {"input_ids": torch.randint(0, 1024, (_ROWS, _TOKENS))}


def _vit() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import ViTConfig, ViTModel

    sizes = {name: value for name, value in _TEXT.items() if name != "vocab_size"}
    config = ViTConfig(**sizes, image_size=128, patch_size=16)
    return ViTModel(config), {"pixel_values": torch.randn(_ROWS, 3, 128, 128)}


def _whisper() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        d_model=512,
        encoder_layers=4,
        encoder_attention_heads=8,
        encoder_ffn_dim=1408,
        decoder_layers=1,
        decoder_attention_heads=8,
        max_source_positions=64,
        vocab_size=1024,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return WhisperModel(config).encoder, {"input_features": torch.randn(_ROWS, 80, 128)}


MODELS: Mapping[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "llama": _decoder("Llama", **_GROUPED),
    "qwen3": _decoder("Qwen3", **_GROUPED, head_dim=64),
    "mistral": _decoder("Mistral", **_GROUPED, sliding_window=None),
    "gemma2": _decoder("Gemma2", **_GROUPED, head_dim=64),
    "gpt2": _decoder(
        "GPT2",
        vocab_size=1024,
        n_embd=512,
        n_layer=4,
        n_head=8,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "bert": _decoder("Bert", **_TEXT),
    "t5-encoder": _t5,
    "mixtral": _decoder("Mixtral", **_GROUPED, num_local_experts=4),
    "vit": _vit,
    "whisper-encoder": _whisper,
}
"""By name: what builds a model, and the keyword arguments of one step."""


def child(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of one model in this process."""
    import torch

    from superopt.backend.entry import ledger_of
    from superopt.tune import measure_together

    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.train(options.train)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    settings: dict[str, Any] = {"budget_s": options.budget, "preset": options.preset}
    torch.compile(lambda x: x + 1)(torch.ones(4))  # Inductor's own start counts for nobody
    programs = {
        "eager": model,
        "inductor": torch.compile(model),
        "superopt": torch.compile(model, backend="superopt", options=settings),
    }
    steps = {label: _step(program, inputs, train=options.train) for label, program in programs.items()}
    record: dict[str, Any] = {"compile_s": {}, "us": {}}
    for label, step in steps.items():
        torch._dynamo.reset()
        start = time.perf_counter()
        step()
        if label != "eager":
            record["compile_s"][label] = round(time.perf_counter() - start, 2)
    if options.warm:
        return record
    # A reset between compilations keeps them apart; all that is raced is compiled once more, from caches.
    torch._dynamo.reset()
    timed = measure_together(steps, [()], seconds=options.seconds)
    record["us"] = {label: round(one.median_us, 1) for label, one in timed.items()}
    record["speedup"] = round(record["us"]["inductor"] / record["us"]["superopt"], 3)
    ledger = ledger_of(settings)
    taken = [one for one in ledger.decisions if one.taken]
    passes = max(ledger.graphs, 1)
    record["regions"] = {"taken": len(taken), "all": len(ledger.decisions), "graphs": passes}
    covered = sum(one.flops for one in taken)
    record["covered"] = round(covered / ledger.total_flops, 3) if ledger.total_flops else 0.0
    record["explained"] = ledger.text().splitlines()
    return record


def _step(program: Callable[..., Any], inputs: Mapping[str, Any], *, train: bool) -> Callable[[], Any]:
    import torch

    def infer() -> Any:
        with torch.no_grad():
            return program(**inputs)

    def learn() -> Any:
        made = program(**inputs)[0]
        return made.float().square().mean().backward()

    return learn if train else infer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(MODELS))
        return 0
    names = options.models.split(",") if options.models else list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        print(f"no model is named {unknown[0]!r}; there are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    if options.child:
        print(json.dumps(child(names[0], options)))
        return 0
    found = {}
    print(
        f"{'model':16} {'eager':>10} {'Inductor':>10} {'superopt':>10} {'speedup':>8} covered  cold s  warm s"
    )
    for name in names:
        found[name] = _measured(name, options)
        print(_line(name, found[name]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(_document(found, options), indent=1) + "\n")
    return 0 if all("failed" not in one for one in found.values()) else 1


def _measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the record of one model from two processes, or the reason why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        places = {"SUPEROPT_CACHE_DIR": f"{folder}/superopt", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        records = []
        for warm in ((), ("--warm",)):
            command = [sys.executable, "-m", "superopt.bench.models", "--child", "--models", name, *warm]
            command += ["--budget", str(options.budget), "--preset", options.preset]
            command += ["--seconds", str(options.seconds), *(["--train"] if options.train else [])]
            done = subprocess.run(command, env={**os.environ, **places}, capture_output=True, text=True)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                return {"failed": lines[-1]}
            records.append(json.loads(done.stdout.splitlines()[-1]))
    cold, again = records
    return {**cold, "warm_s": again["compile_s"]}


def _line(name: str, record: Mapping[str, Any]) -> str:
    if "failed" in record:
        return f"{name:16} failed: {record['failed']}"
    us = record["us"]
    times = " ".join(f"{us[label]:10.1f}" for label in ("eager", "inductor", "superopt"))
    seconds = f"{record['compile_s']['superopt']:7.1f} {record['warm_s']['superopt']:7.1f}"
    return f"{name:16} {times} {record['speedup']:8.2f} {record['covered']:7.0%} {seconds}"


def _document(found: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    import torch
    import transformers

    from superopt.targets import pick_target

    return {
        "version": VERSION,
        "device": pick_target("cpu").device_name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "train": options.train,
        "budget_s": options.budget,
        "preset": options.preset,
        "models": dict(found),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.models", description="Models by eager PyTorch, by Inductor, and by superopt"
    )
    parser.add_argument("--models", help="names by commas; all by default")
    parser.add_argument("--train", action="store_true", help="a step is forward and backward")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of search for each model")
    parser.add_argument("--preset", default="quick", choices=("quick", "full"))
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring each model")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--list", action="store_true", help="show the names of the models")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
