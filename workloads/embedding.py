"""A recommender whose tables dwarf its arithmetic: embeddings, two MLPs, dot interaction.

The architecture of DLRM (Naumov et al., "Deep Learning Recommendation Model for Personalization
and Recommendation Systems", 2019). Lookups are skewed as those of users are: few rows take most.

Letters in shapes: N samples, F features, T tables, K lookups of a bag, D width of a row.
"""

from __future__ import annotations

import itertools
import math

import msgspec
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
    Workload,
    cycle_of_batches,
    few_samples,
    optimizer_factory,
)
from workloads.samples import Drawn, bytes_of_sample
from workloads.tasks import hidden_rule

FEATURES = 13
"""Dense features of a sample, as many as the Criteo data sets have."""
PROOF_ROWS = 2000
GOLDEN = 0.618
"""Of a table, between a popular row and the next: multiples of it fall far from each other."""


class EmbeddingOptions(Options, frozen=True, kw_only=True):
    """Settings of ``embedding``."""

    tables: int = 26
    """Number of embedding tables."""
    rows: int = 200_000
    """Rows of each table."""
    width: int = 128
    """Numbers in a row, and in the output of the bottom MLP."""
    lookups: int = 1
    """Rows of each table that a sample sums up."""
    hidden_width: int = 512
    """Width of the hidden layers of both MLPs."""
    hidden_layers: int = 2
    """Hidden layers of each MLP."""
    skew: float = 1.05
    """Exponent of the Zipf distribution of lookups: 0 draws all rows alike."""
    sparse: bool = False
    """Give the tables sparse gradients, which hold only the rows that were looked up."""

    def __post_init__(self) -> None:
        self.require_positive("tables", "rows", "width", "lookups", "hidden_width", "hidden_layers")
        if not 0 <= self.skew < math.inf:
            raise ValueError("skew must be 0 or more")


class Recommender(nn.Module):
    """Features (N, F) and row ids (N, T, K) -> logits (N,)."""

    def __init__(self, options: EmbeddingOptions) -> None:
        super().__init__()
        bound = 1 / math.sqrt(options.rows)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(options.rows, options.width, mode="sum", sparse=options.sparse)
            for _ in range(options.tables)
        )
        for table in self.tables.parameters():
            nn.init.uniform_(table, -bound, bound)
        hidden = [options.hidden_width] * options.hidden_layers
        pairs = options.tables * (options.tables + 1) // 2
        self.bottom = _mlp([FEATURES, *hidden, options.width])
        self.top = _mlp([options.width + pairs, *hidden, 1])
        below = torch.tril_indices(options.tables + 1, options.tables + 1, offset=-1)
        self.pairs: Tensor
        self.register_buffer("pairs", below, persistent=False)

    def forward(self, features_NF: Tensor, ids_NTK: Tensor) -> Tensor:
        """Logits of a click, (N,)."""
        dense_ND = self.bottom(features_NF)
        vectors = [table(ids_NTK[:, index]) for index, table in enumerate(self.tables)]
        # Under autocast the MLP's output is narrower than the rows.
        stacked_NSD = torch.stack([dense_ND.to(vectors[0].dtype), *vectors], dim=1)
        products_NSS = stacked_NSD @ stacked_NSD.transpose(1, 2)
        chosen_NP = products_NSS[:, self.pairs[0], self.pairs[1]]
        logits_N1: Tensor = self.top(torch.cat([dense_ND, chosen_NP.to(dense_ND.dtype)], dim=1))
        return logits_N1.squeeze(1)


def _mlp(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def skewed_rows(
    shape: tuple[int, ...], options: EmbeddingOptions, generator: torch.Generator
) -> Tensor:
    """Row ids of a bounded Zipf distribution, popular rows strewn over the table.

    The inverse of the continuous distribution with density ~ x^-skew between 1 and rows + 1, cut
    to whole numbers: row k comes up in proportion to about k^-skew.

    Args:
        shape: of the result.
        options: for the number of rows and the skew.
        generator: on the device of the result.
    """
    uniform = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    power, top = 1 - options.skew, options.rows + 1.0
    if abs(power) < 1e-9:
        drawn = top**uniform
    else:
        drawn = (1 + uniform * (top**power - 1)) ** (1 / power)
    rank = drawn.long().clamp(1, options.rows) - 1
    stride = max(1, round(GOLDEN * options.rows))
    while math.gcd(stride, options.rows) != 1:  # so that every row is visited
        stride += 1
    return rank * stride % options.rows


def facts(options: EmbeddingOptions) -> Facts:
    """Samples, whose tables may have sparse gradients."""
    return Facts(
        unit="sample",
        has_sparse_gradients=options.sparse,
        sample_bytes=bytes_of_sample(_draw, options),
    )


def _draw(
    options: EmbeddingOptions, count: int, generator: torch.Generator, dtype: torch.dtype
) -> Batch:
    device = generator.device
    features_NF = torch.randn((count, FEATURES), generator=generator, device=device, dtype=dtype)
    ids_NTK = skewed_rows((count, options.tables, options.lookups), options, generator)
    clicks_N = torch.randint(2, (count,), generator=generator, device=device).to(dtype)
    return Batch((features_NF, ids_NTK), clicks_N)


def build(options: EmbeddingOptions, build: Build) -> Problem:
    """Model, loss on clicks, and random features with skewed lookups."""
    torch.manual_seed(build.seed)
    with torch.device(build.device):
        model = Recommender(options).to(dtype=build.dtype).train()

    def make(generator: torch.Generator) -> Batch:
        return _draw(options, build.per_device_batch, generator, build.dtype)

    def rows(generator: torch.Generator) -> tuple[Tensor, ...]:
        return (skewed_rows((options.tables, options.lookups), options, generator),)

    return Problem(
        model=model,
        # Plain SGD, as DLRM is trained: it takes sparse gradients, and has no state to grow.
        make_optimizer=optimizer_factory(
            build.optimizer, lr=0.01, momentum=0.0, kernels=build.optimizer_kernels
        ),
        loss=_loss,
        batches=cycle_of_batches(make, build),
        shard_units=_units,
        samples=Drawn(draw=_draw, options=options, seed=build.seed),
        task=hidden_rule(build, features=FEATURES, others=rows),
    )


def for_proof(options: EmbeddingOptions, per_device_batch: int) -> tuple[EmbeddingOptions, int]:
    """Shorter tables: those of ``full`` would make a reference of many gigabytes."""
    shorter = msgspec.structs.replace(options, rows=min(options.rows, PROOF_ROWS))
    return few_samples(shorter, per_device_batch)


def _loss(logits_N: Tensor, batch: Batch) -> Tensor:
    logits_N = logits_N.to(batch.targets.dtype)
    return functional.binary_cross_entropy_with_logits(logits_N, batch.targets)


def _units(model: nn.Module) -> list[nn.Module]:
    assert isinstance(model, Recommender)
    return [*model.tables, model.bottom, model.top]


WORKLOADS = (
    Workload(
        name="embedding",
        summary="recommender (DLRM): embedding tables, two MLPs, dot interaction, skewed lookups",
        options=EmbeddingOptions,
        presets={
            "tiny": Preset(
                options=EmbeddingOptions(
                    tables=4, rows=100, width=8, lookups=2, hidden_width=16, hidden_layers=1
                ),
                per_device_batch=8,
                summary="4 tables of 100 rows, batch 8",
            ),
            "cpu": Preset(
                options=EmbeddingOptions(
                    tables=8, rows=20_000, width=32, lookups=4, hidden_width=256, hidden_layers=1
                ),
                per_device_batch=256,
                summary="8 tables, 5 million parameters in them, batch 256",
            ),
            "full": Preset(
                options=EmbeddingOptions(),
                per_device_batch=2048,
                summary="26 tables, 666 million parameters in them (2.7 GB in fp32), batch 2048",
            ),
        },
        optimizer="sgd",
        facts=facts,
        build=build,
        for_proof=for_proof,
    ),
)
