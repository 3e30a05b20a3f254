"""Zoo: small models with random weights, built from configurations, and the inputs of a step.

Text and vision models are those of the transformers library; two small convolutional nets are written
out. Nothing is downloaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["DECODERS", "MODELS", "Decoding", "Sizes", "build", "inputs_of"]

DECODERS = ("llama", "qwen3", "mistral", "gemma2", "gpt2", "mixtral")
"""The models that make one token after another."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a model is built, and how much it is given."""

    width: int = 512
    inner: int = 1408
    heads: int = 8
    kv_heads: int = 4
    layers: int = 2
    vocabulary: int = 1024
    rows: int = 1
    tokens: int = 64
    image: int = 128
    patch: int = 16

    def text(self) -> dict[str, Any]:
        """Return the sizes by the names that most configurations have for them."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
        }

    def decoder(self) -> dict[str, Any]:
        """Return the sizes by the names that decoders with shared keys have for them."""
        return {**self.text(), "num_key_value_heads": self.kv_heads, "max_position_embeddings": 4096}


def build(name: str, sizes: Sizes, *, head: bool = False) -> nn.Module:
    """Return a model in evaluation mode without dropout; with its language model's head if asked."""
    model = MODELS[name](sizes, head)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.eval()


def inputs_of(name: str, sizes: Sizes) -> dict[str, Any]:
    """Return the keyword arguments of one step, on the CPU and in float32."""
    if name in ("vit", "resnet", "convnext"):
        return {"pixel_values": torch.randn(sizes.rows, 3, sizes.image, sizes.image)}
    if name == "whisper-encoder":
        return {"input_features": torch.randn(sizes.rows, 80, 2 * sizes.tokens)}
    tokens = torch.randint(0, sizes.vocabulary, (sizes.rows, sizes.tokens))
    return {"input_ids": tokens, **({"use_cache": False} if name in DECODERS else {})}


class Decoding:
    """Steps of a decoder: each reads a cache of keys and values and adds one token at the same place."""

    def __init__(self, model: Any, filled: int) -> None:
        from transformers import StaticCache

        self.filled = filled
        self.cache: Any = StaticCache(config=model.config, max_cache_len=filled + 8)
        device = next(model.parameters()).device
        tokens = torch.randint(0, model.config.vocab_size, (1, filled), device=device)
        with torch.no_grad():
            model(input_ids=tokens, past_key_values=self.cache)
        self.inputs = {"input_ids": tokens[:, :1].contiguous(), "past_key_values": self.cache}

    def rewind(self) -> None:
        """Forget the token that the last step added."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.filled)


Fields = Callable[[Sizes], dict[str, Any]]


def _family(
    name: str, fields: Fields = Sizes.decoder, *, model: str = "Model", head: str = "ForCausalLM", **more: Any
) -> Callable[[Sizes, bool], nn.Module]:
    """Return what builds a model of transformers from the name of its family and the fields of its config."""

    def make(sizes: Sizes, with_head: bool) -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(**fields(sizes), **more)
        made: nn.Module = getattr(transformers, f"{name}{head if with_head else model}")(config)
        return made

    return make


def _head_dim(sizes: Sizes) -> dict[str, Any]:
    return {**sizes.decoder(), "head_dim": sizes.width // sizes.heads}


def _gpt2(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": sizes.vocabulary,
        "n_embd": sizes.width,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
        "n_positions": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _t5(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": sizes.vocabulary,
        "d_model": sizes.width,
        "d_ff": sizes.inner,
        "d_kv": sizes.width // sizes.heads,
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
    }


def _vit(sizes: Sizes) -> dict[str, Any]:
    known = {name: value for name, value in sizes.text().items() if name != "vocab_size"}
    return {**known, "image_size": sizes.image, "patch_size": sizes.patch}


def _whisper(sizes: Sizes, head: bool) -> nn.Module:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        d_model=sizes.width,
        encoder_layers=sizes.layers,
        encoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.inner,
        decoder_layers=1,
        decoder_attention_heads=sizes.heads,
        max_source_positions=sizes.tokens,
        vocab_size=sizes.vocabulary,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    encoder: nn.Module = WhisperModel(config).encoder
    return encoder


class ResNetBlock(nn.Module):
    """Two convolutions, each with a batch norm, and the input around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the same shape."""
        made = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(made)))


class ConvNextBlock(nn.Module):
    """A depthwise convolution, and a layer norm and an MLP along the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the same shape."""
        made = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        made = x + (self.scale * self.down(F.gelu(self.up(made)))).permute(0, 3, 1, 2)
        assert isinstance(made, Tensor)
        return made


class ConvNet(nn.Module):
    """Patches, blocks of one kind, and a mean of what they make."""

    def __init__(self, block: Callable[[int], nn.Module], sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width // 4
        self.stem = nn.Conv2d(3, width, sizes.patch // 2, stride=sizes.patch // 2)
        self.blocks = nn.Sequential(*(block(width) for _ in range(sizes.layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return ten scores for each image."""
        made = self.head(self.blocks(self.stem(pixel_values)).mean((2, 3)))
        assert isinstance(made, Tensor)
        return made


MODELS: Mapping[str, Callable[[Sizes, bool], nn.Module]] = {
    "llama": _family("Llama"),
    "qwen3": _family("Qwen3", _head_dim),
    "mistral": _family("Mistral", sliding_window=None),
    "gemma2": _family("Gemma2", _head_dim, attn_implementation="eager"),  # others leave out its soft caps
    "gpt2": _family("GPT2", _gpt2, head="LMHeadModel"),
    "bert": _family("Bert", Sizes.text),
    "t5-encoder": _family("T5", _t5, model="EncoderModel", head="EncoderModel"),
    "mixtral": _family("Mixtral", num_local_experts=4),
    "vit": _family("ViT", _vit, head="Model"),
    "whisper-encoder": _whisper,
    "resnet": lambda sizes, head: ConvNet(ResNetBlock, sizes),
    "convnext": lambda sizes, head: ConvNet(ConvNextBlock, sizes),
}
"""By name: what builds a model."""
