"""A decoder-only language model: pre-norm blocks, scaled dot-product attention, learned positions.

The architecture of GPT-2 (Radford et al., 2019), whose sizes the larger presets have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.base import (
    Batch,
    Build,
    Facts,
    Options,
    Preset,
    Problem,
    Tokens,
    Workload,
    cycle_of_batches,
    optimizer_factory,
)
from workloads.samples import Drawn, bytes_of_sample
from workloads.tasks import counting_tokens


class TransformerOptions(Options, frozen=True, kw_only=True):
    """Settings of ``transformer``."""

    layers: int = 12
    """Number of blocks."""
    heads: int = 12
    """Attention heads of a block."""
    width: int = 768
    """Size of the residual stream; a multiple of ``heads``."""
    vocabulary: int = 50257
    """Number of different tokens."""
    sequence_length: int = 1024
    """Tokens of a sample."""
    tie_embeddings: bool = True
    """Use the token embedding as the output layer's weight too."""
    unused_branch: bool = False
    """Hold one more block that no step uses, as a model with an idle expert or a second task does:
    its parameters get no gradient."""

    def __post_init__(self) -> None:
        self.require_positive("layers", "heads", "width", "vocabulary", "sequence_length")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")


class Block(nn.Module):
    """Attention and a four times wider MLP, each behind a layer norm and a residual."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.heads = options.heads
        self.norm_attention = nn.LayerNorm(options.width)
        self.qkv = nn.Linear(options.width, 3 * options.width)
        self.project = nn.Linear(options.width, options.width)
        self.norm_mlp = nn.LayerNorm(options.width)
        self.widen = nn.Linear(options.width, 4 * options.width)
        self.narrow = nn.Linear(4 * options.width, options.width)

    def forward(self, stream_BLD: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        stream_BLD = stream_BLD + self._attend(self.norm_attention(stream_BLD))
        hidden_BLF = functional.gelu(self.widen(self.norm_mlp(stream_BLD)), approximate="tanh")
        narrowed_BLD: Tensor = self.narrow(hidden_BLF)
        return stream_BLD + narrowed_BLD

    def _attend(self, stream_BLD: Tensor) -> Tensor:
        batch, length, width = stream_BLD.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(stream_BLD).chunk(3, dim=-1)
        )
        mixed_BHLd = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project(mixed_BHLd.transpose(1, 2).reshape(batch, length, width))
        return projected


class Transformer(nn.Module):
    """Tokens (B, L) -> logits of the next token (B, L, V)."""

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.positions = nn.Embedding(options.sequence_length, options.width)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)
        self.apply(_initialise)
        for name, weight in self.named_parameters():
            if name.endswith(("project.weight", "narrow.weight")):
                # GPT-2: the variance of the residual stream must not grow with depth.
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * options.layers))
        if options.tie_embeddings:
            self.head.weight = self.tokens.weight
        if options.unused_branch:
            self.spare = Block(options)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Logits of the next token at every position, (B, L, V)."""
        positions_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        stream_BLD = self.tokens(tokens_BL) + self.positions(positions_L)
        for block in self.blocks:
            stream_BLD = block(stream_BLD)
        logits_BLV: Tensor = self.head(self.norm(stream_BLD))
        return logits_BLV


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def facts(options: TransformerOptions) -> Facts:
    """Sequences, counted in tokens."""
    return Facts(
        unit="token",
        units_per_sample=options.sequence_length,
        has_unused_parameters=options.unused_branch,
        has_tied_parameters=options.tie_embeddings,
        samples=Tokens(length=options.sequence_length, vocabulary=options.vocabulary),
        sample_bytes=bytes_of_sample(_draw, options),
    )


def _draw(
    options: TransformerOptions, count: int, generator: torch.Generator, dtype: torch.dtype
) -> Batch:
    del dtype  # ids have no point
    tokens_BL = torch.randint(
        options.vocabulary,
        (count, options.sequence_length + 1),
        generator=generator,
        device=generator.device,
    )
    return Batch((tokens_BL[:, :-1].contiguous(),), tokens_BL[:, 1:].contiguous())


def build(options: TransformerOptions, build: Build) -> Problem:
    """Model, next-token loss, and random tokens."""
    torch.manual_seed(build.seed)
    model = Transformer(options).to(device=build.device, dtype=build.dtype).train()

    def make(generator: torch.Generator) -> Batch:
        return _draw(options, build.per_device_batch, generator, build.dtype)

    return Problem(
        model=model,
        make_optimizer=optimizer_factory(build.optimizer, lr=3e-4, kernels=build.optimizer_kernels),
        loss=_loss,
        batches=cycle_of_batches(make, build),
        shard_units=_blocks,
        task=counting_tokens(build, vocabulary=options.vocabulary, length=options.sequence_length),
        units_per_sample=options.sequence_length,
        samples=Drawn(draw=_draw, options=options, seed=build.seed),
    )


def _loss(logits_BLV: Tensor, batch: Batch) -> Tensor:
    return functional.cross_entropy(logits_BLV.flatten(0, 1), batch.targets.flatten())


def _blocks(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Block)]


def _gpt(*, layers: int, heads: int, width: int, batch: int, length: int, summary: str) -> Preset:
    return Preset(
        options=TransformerOptions(layers=layers, heads=heads, width=width, sequence_length=length),
        per_device_batch=batch,
        summary=summary,
    )


WORKLOADS = (
    Workload(
        name="transformer",
        summary="decoder-only language model (GPT-2), cross-entropy on random tokens",
        options=TransformerOptions,
        presets={
            "tiny": Preset(
                options=TransformerOptions(
                    layers=2, heads=2, width=64, vocabulary=256, sequence_length=32
                ),
                per_device_batch=4,
                summary="0.1 million parameters, batch 4 of 32 tokens",
            ),
            "cpu": Preset(
                options=TransformerOptions(
                    layers=4, heads=4, width=256, vocabulary=8192, sequence_length=128
                ),
                per_device_batch=2,
                summary="5 million parameters, batch 2 of 128 tokens",
            ),
            "full": _gpt(
                layers=12,
                heads=12,
                width=768,
                batch=8,
                length=1024,
                summary="GPT-2: 124 million parameters, batch 8 of 1024 tokens",
            ),
            "medium": _gpt(
                layers=24,
                heads=16,
                width=1024,
                batch=4,
                length=1024,
                summary="GPT-2 medium: 355 million parameters, batch 4 of 1024 tokens",
            ),
            "large": _gpt(
                layers=36,
                heads=20,
                width=1280,
                batch=2,
                length=1024,
                summary="GPT-2 large: 774 million parameters, batch 2 of 1024 tokens",
            ),
            "xl": _gpt(
                layers=48,
                heads=25,
                width=1600,
                batch=1,
                length=1024,
                summary="GPT-2 XL: 1.56 billion parameters, batch 1 of 1024 tokens",
            ),
        },
        optimizer="adamw",
        facts=facts,
        build=build,
    ),
)
