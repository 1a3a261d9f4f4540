"""What both versions of FSDP share: units, groups of ranks, own mixed precision, and its limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bench.measure.precision import AUTOCAST
from bench.plan.case import Case, PositiveInt
from bench.strategies.base import Context, Options
from bench.strategies.saving import Saving
from workloads.base import Facts, Problem

Narrow = Literal["bf16", "fp16"]
Reduced = Literal["fp32", "bf16", "fp16"]
Wrap = Literal["units", "root"]


class ShardingOptions(Options, frozen=True, kw_only=True):
    """What can be set of either FSDP."""

    reduce_dtype: Reduced | None = None
    """Type in which gradients are reduced under ``mixed_precision``; null is that same type. Helps
    fp32 to keep small contributions of many ranks. Costs fp32 twice the bytes to reduce."""
    shard_size: PositiveInt | None = None
    """Ranks that a model is split over; the groups of as many ranks are replicas of each other
    (hybrid sharding). Helps where such a group is one host with quick links, since gathers stay
    within it. Costs the memory of fewer shards, and an all-reduce of gradients between replicas."""
    wrap: Wrap = "units"
    """What is gathered at once: each unit of the workload, or, with root, the whole model. Helps
    root where each collective takes long to begin and memory is ample. Costs root the memory of all
    parameters at once, and an all-gather that overlaps with nothing."""


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check(facts: Facts, case: Case) -> str | None:
    """Whether the workload can be sharded as the options say."""
    if facts.has_sparse_gradients:
        return "FSDP reduces gradients by rows, which sparse ones do not have; use dense ones"
    return _check_types(case) or _check_groups(case)


def _check_types(case: Case) -> str | None:
    narrow, reduced = case.options["mixed_precision"], case.options["reduce_dtype"]
    if reduced is not None and narrow is None:
        return "reduce_dtype belongs to FSDP's own mixed precision; set mixed_precision too"
    if narrow is not None and case.precision != f"{narrow}-amp":
        # Else its row would stand among those that compute in another type.
        return (
            f"mixed_precision: {narrow} computes in {narrow} with fp32 parameters; "
            f"set precision: {narrow}-amp, which says so"
        )
    return None


def _check_groups(case: Case) -> str | None:
    size = case.options["shard_size"]
    if size is None:
        return None
    if not 1 < size < case.world_size or case.world_size % size:
        if not any(case.world_size % one == 0 for one in range(2, case.world_size)):
            return (
                f"{case.world_size} devices cannot be split into several groups of several, as"
                " shard_size asks; use null to shard over all, or another number of devices"
            )
        return (
            f"shard_size {size} does not split {case.world_size} devices into several groups of "
            "several; use a divisor between the two, or null to shard over all"
        )
    return None


def flags(case: Case) -> Sequence[str]:
    """What the backend, the number of devices and the types do to its figures."""
    found = []
    if case.world_size == 1:
        found.append("no_sharding")
    elif case.backend == "gloo":
        found.append("fsdp_over_gloo")
    if case.precision in AUTOCAST:
        own = case.options.get("mixed_precision") is not None
        found.append("fsdp_policy" if own else "fsdp_autocast")
    return found


def casts(options: Mapping[str, Any]) -> str | None:
    """The type that FSDP itself casts parameters and inputs to, None where it leaves them."""
    return options.get("mixed_precision")


def group_sizes(case: Case) -> Sequence[int]:
    """Ranks of each kind of group: those that share a model, and the holders of equal shards."""
    size = case.options.get("shard_size")
    return [case.world_size] if size is None else [size, case.world_size // size]


def saving(options: Mapping[str, Any], world_size: int) -> Saving:
    """Each rank writes its shards."""
    del options, world_size
    return Saving(form="sharded")


def narrow_type(context: Context) -> torch.dtype | None:
    """The type to compute in, where FSDP casts by itself; None in a proof in fp64."""
    if context.precision not in AUTOCAST or context.options.mixed_precision is None:
        return None
    return DTYPES[context.options.mixed_precision]


def reduce_type(context: Context) -> torch.dtype | None:
    """The type to reduce gradients in; None for the one they have."""
    asked = context.options.reduce_dtype
    return None if asked is None else DTYPES[asked]


def units_of(problem: Problem, wrap: Wrap) -> list[nn.Module]:
    """Modules to shard one by one before the root; none of them is empty."""
    if wrap == "root":
        return []
    units = problem.shard_units(problem.model)
    return [unit for unit in units if any(True for _ in unit.parameters())]


def own_bytes(parts: Iterable[Iterable[nn.Module]], sizes: Mapping[Tensor, int]) -> list[int]:
    """Bytes of each part's own parameters, those of parts before it left out; no empty ones.

    Args:
        parts: modules that are communicated together, inner ones first.
        sizes: bytes of each whole parameter.
    """
    taken: set[Tensor] = set()
    found: list[int] = []
    for modules in parts:
        own = {parameter for module in modules for parameter in module.parameters()} - taken
        taken |= own
        found.append(sum(sizes[parameter] for parameter in own))
    return [size for size in found if size > 0]


def whole_bytes(model: nn.Module) -> dict[Tensor, int]:
    """Bytes of each parameter, before any is sharded."""
    return {
        parameter: math.prod(parameter.shape) * parameter.element_size()
        for parameter in model.parameters()
    }
