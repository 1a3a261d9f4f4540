"""The contract of a workload: what a strategy may ask of a model, and what it is given.

A workload file defines frozen options, presets, facts and a ``build`` function, and ends with
``WORKLOADS = (Workload(...),)``. It imports torch and nothing of ``bench``.

Letters in shapes: N samples, C channels, H height, W width, L sequence, B = N for sequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.units import repeated_blocks


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every workload's settings: a frozen value whose fields are typed."""

    def require_positive(self, *names: str) -> None:
        """Check settings that count something.

        Raises:
            ValueError: names the first that is less than 1.
        """
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


class Batch(NamedTuple):
    """What one device sees in one micro-step; dimension 0 of every tensor counts samples."""

    inputs: tuple[Tensor, ...]
    """Arguments of the model's forward."""
    targets: Tensor


class Samples(Protocol):
    """Samples on the host, one by one: what a data source loads in place of ``Problem.batches``.

    Workers of a loader have a copy each, so that it must be possible to fork, or to pickle it.
    """

    def __getitem__(self, index: int) -> Batch:
        """A sample by its number, the same one for the same seed.

        Its tensors lack the dimension of samples; numbers with a point are in fp32.
        """


@dataclass(frozen=True, kw_only=True)
class Images:
    """Samples are pictures of three colours, of numbers with a point, and of one class each."""

    size: int
    """Height and width in pixels."""
    classes: int
    channels_last: bool = False


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Samples are rows of token ids; their targets the same, one token further on."""

    length: int
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What planning must know of a workload before anything is built."""

    unit: str
    """What ``units_per_sample`` counts: image, token, sample."""
    units_per_sample: int = 1
    has_batch_norm: bool = False
    has_sparse_gradients: bool = False
    has_shard_units: bool = True
    """Whether ``Problem.shard_units`` gives any."""
    has_unused_parameters: bool = False
    """Whether steps leave parameters without a gradient: the same ones in every step, on every
    rank."""
    has_tied_parameters: bool = False
    """Whether a parameter is used in several places, as tied embeddings are."""
    gives_one_tensor: bool = True
    """Whether the model's forward gives one tensor, and not several in a tuple or mapping."""
    samples: Images | Tokens | None = None
    """What files may stand in for its samples: none where it is neither pictures nor tokens."""
    sample_bytes: int | None = None
    """Of one of ``Problem.samples`` on the host; None where the problem gives none."""
    sample_count: int | None = None
    """How many it has; None for as many as are asked for."""
    step_problem: str | None = None
    """Why a step of it fails on tensors without content, where it seems that a real one would."""


OptimizerKernels = Literal["auto", "for-loop", "foreach", "fused"]
KERNELS: Mapping[OptimizerKernels, Mapping[str, bool]] = {
    "auto": {},
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}
"""Arguments of torch's optimizers: update tensor by tensor, by operation, or all in one kernel."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """What a workload is built for."""

    device: torch.device
    dtype: torch.dtype
    """Type of parameters and floating-point inputs."""
    seed: int
    """Seed of the initial parameters, the same on all ranks; data add their shard to it."""
    per_device_batch: int
    optimizer: Literal["sgd", "adamw"]
    optimizer_kernels: OptimizerKernels = "auto"
    """For the optimizer's constructor, as ``KERNELS`` has it; auto leaves torch the choice."""
    is_proof: bool = False
    """Whether it is trained to be compared with another training, number by number: then nothing of
    the model may be drawn at random, such as dropout's masks."""


Batches = Callable[[int | None, int], Iterator[Batch]]
"""(shard, number of shards) -> batches of that shard; for shard None, of all shards together."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a model can learn, in place of the random batches that it is timed with."""

    what: str
    """In words, as in: images whose class shows as the direction of stripes."""
    batches: Batches
    """As ``Problem.batches``, and none of them comes again."""
    constant_loss: float | None = None
    """Of the best prediction that is the same for all samples; None where it is not known."""
    lr: float | None = None
    """Learning rate that suits it; None for the workload's own."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model to train, with all that training needs. Built on the device it will run on."""

    model: nn.Module
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    """Called by the strategy, after wrapping the model."""
    loss: Callable[[Any, Batch], Tensor]
    """(output of the model, batch) -> scalar: the mean over the batch's samples."""
    batches: Callable[[int | None, int], Iterator[Batch]]
    """(shard, number of shards) -> endless batches of that shard, the same for the same seed. For
    shard None, batches of all shards together, in their order: what one process that drives all
    devices trains on."""
    shard_units: Callable[[nn.Module], list[nn.Module]] = repeated_blocks
    """Modules to shard one by one, outermost last; those that are repeated, unless given."""
    units_per_sample: int = 1
    samples: Samples | None = None
    """The same kind of samples one by one, on the host, for loaders; None where there are none."""
    task: Task | None = None
    """What its model can learn; None where nothing is known to be learnable."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named size of a workload."""

    options: Options
    per_device_batch: int
    summary: str


MAX_PROOF_BATCH = 4


def few_samples(options: Any, per_device_batch: int) -> tuple[Any, int]:
    """The same options with at most ``MAX_PROOF_BATCH`` samples: for most workloads' proofs."""
    return options, min(per_device_batch, MAX_PROOF_BATCH)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model that a suite can name."""

    name: str
    summary: str
    options: type[Options]
    presets: Mapping[str, Preset]
    optimizer: Literal["sgd", "adamw"]
    """The optimizer that ``optimizer: auto`` stands for."""
    facts: Callable[[Any], Facts]
    """(options) -> facts, without building anything."""
    build: Callable[[Any, Build], Problem]
    """(options, build) -> problem. Seeds torch's generator from ``build.seed``."""
    for_proof: Callable[[Any, int], tuple[Any, int]] = few_samples
    """(options, per-device batch) -> those of a smaller problem of the same layers, for the parity
    pass: what a strategy does to gradients does not depend on how much data there is, nor on how
    long a table."""

    @property
    def default_presets(self) -> dict[str, str]:
        """Preset by device type where a suite names none; under "" that of any accelerator."""
        names = list(self.presets)
        return {
            "cpu": "cpu" if "cpu" in names else names[0],
            "": "full" if "full" in names else names[-1],
        }


@dataclass(frozen=True, kw_only=True)
class Family:
    """Workloads of one kind that a suite names as ``FAMILY:NAME``; a file exports ``FAMILIES``."""

    name: str
    summary: str
    options: type[Options]
    """Of each of them."""
    names: Callable[[], list[str]]
    """Of all of them. Raises ``ImportError`` where the library that they come from is missing."""
    make: Callable[[str], Workload]


def shard_seed(seed: int, shard: int) -> int:
    """Seed of one shard's data: 63 bits that differ for every pair of arguments in practice."""
    digest = hashlib.blake2b(f"{seed}/{shard}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def cycle_of_batches(
    make: Callable[[torch.Generator], Batch],
    build: Build,
    *,
    distinct: int = 4,
) -> Callable[[int | None, int], Iterator[Batch]]:
    """Batches made once on the device and used again and again.

    Making new ones in every step would time the random number generator.

    Args:
        make: draws one batch from the generator given, on its device.
        build: names the device and the seed.
        distinct: how many batches differ before they repeat.
    """

    def pool_of(shard: int, shards: int) -> list[Batch]:
        assert 0 <= shard < shards, f"shard {shard} of {shards}"
        generator = torch.Generator(build.device)
        generator.manual_seed(shard_seed(build.seed, shard))
        return [make(generator) for _ in range(distinct)]

    return cycle_of_pools(pool_of)


def cycle_of_pools(
    pool_of: Callable[[int, int], list[Batch]],
) -> Callable[[int | None, int], Iterator[Batch]]:
    """Some batches of each shard again and again, as ``Problem.batches`` gives them.

    Args:
        pool_of: (shard, number of shards) -> the shard's batches, as many as of any other.
    """

    def batches(shard: int | None, shards: int) -> Iterator[Batch]:
        if shard is None:
            pools = [pool_of(number, shards) for number in range(shards)]
            pool = [concatenate(list(parts)) for parts in zip(*pools, strict=True)]
        else:
            pool = pool_of(shard, shards)
        while True:
            yield from pool

    return batches


def concatenate(batches: list[Batch]) -> Batch:
    """One batch with the samples of all, in order."""
    inputs = zip(*(batch.inputs for batch in batches), strict=True)
    return Batch(
        tuple(torch.cat(parts) for parts in inputs),
        torch.cat([batch.targets for batch in batches]),
    )


def optimizer_factory(
    name: Literal["sgd", "adamw"],
    *,
    lr: float,
    momentum: float = 0.9,
    kernels: OptimizerKernels = "auto",
) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """The optimizer that all rows of a comparison share: torch's own, with its defaults.

    Args:
        name: which.
        lr: learning rate.
        momentum: of SGD.
        kernels: of ``Build``.
    """
    foreach, fused = (KERNELS[kernels].get(name) for name in ("foreach", "fused"))
    if name == "sgd":
        return lambda parameters: torch.optim.SGD(
            parameters, lr=lr, momentum=momentum, foreach=foreach, fused=fused
        )
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, foreach=foreach, fused=fused)
