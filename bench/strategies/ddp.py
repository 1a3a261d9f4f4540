"""``DistributedDataParallel``: a replica for each device, gradients averaged bucket by bucket.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.plan.case import Case, Machine, PositiveFloat
from bench.strategies.base import (
    Context,
    ModuleSession,
    Options,
    Reference,
    Session,
    Strategy,
)
from bench.strategies.compiling import cannot_split
from workloads.base import Facts, Problem

NEVER = 10**9
"""Sampling rate of DDP's own timers that puts their host synchronisation out of the window."""


class DDPOptions(Options, frozen=True, kw_only=True):
    """Settings of ``ddp``. A default is not passed to torch at all."""

    bucket_cap_mb: PositiveFloat | None = None
    """Size in MiB at which a gradient bucket closes. Null leaves torch its own rule, which is not
    the same as 25: without a cap the first bucket is kept at 1 MiB, to start early. Helps, when
    raised, where each collective takes long to begin, and when lowered, to begin sooner. Costs
    overlap if buckets are few, and a start-up time for each if they are many."""
    static_graph: bool = False
    """Promise that every step uses the same parameters in the same order. Helps DDP to leave out
    its search for unused ones, and to work with checkpointed activations. Costs the freedom to
    branch by data; accumulation cannot skip its first synchronisation."""
    gradient_as_bucket_view: bool = False
    """Let gradients be views into the buckets. Helps by saving one copy of all gradients, and its
    memory. Costs nothing but that gradients cannot be detached in place any more."""
    sync_batchnorm: bool = False
    """Normalise over the batch of all ranks: ``SyncBatchNorm`` in place of each batch norm. Not
    an argument of DDP's; on accelerators only, as torch has it. Helps models with batch norm whose
    batch on each device is small. Costs a collective in each such layer, forward and backward,
    which nothing hides."""


def check(facts: Facts, case: Case, machine: Machine) -> str | None:
    """Whether the backend can carry what the workload needs."""
    del machine
    if facts.has_sparse_gradients and case.backend == "nccl":
        return "NCCL cannot all-reduce sparse gradients; use dense ones, or backend gloo"
    if case.options["sync_batchnorm"] and not facts.has_batch_norm:
        return "sync_batchnorm has nothing to do: this workload has no batch norm"
    if case.options["sync_batchnorm"] and case.device == "cpu":
        return "SyncBatchNorm needs an accelerator: torch refuses modules on a CPU"
    defers = case.accumulation_steps > 1 and case.accumulation_sync == "last"
    if case.options["static_graph"] and defers:
        # pytorch#143580: the first backward of a static graph must synchronise.
        return (
            "DDP with a static graph fails when its first micro-step does not synchronise; "
            "use accumulation_sync: every"
        )
    if case.compile != "none" and case.options["bucket_cap_mb"] is not None:
        return cannot_split(int(case.options["bucket_cap_mb"] * 2**20))
    return None


def reference(options: Mapping[str, Any]) -> Reference:
    """With ``sync_batchnorm``, the model sees the whole batch at once."""
    return "whole_batch" if options.get("sync_batchnorm") else "micro_batches"


def prepare(problem: Problem, context: Context) -> Session:
    """Wrap, then build the optimizer over the same parameters."""
    options: DDPOptions = context.options
    arguments = options.changed()
    if arguments.pop("sync_batchnorm", False):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(problem.model)  # type: ignore[no-untyped-call]
        problem = dataclasses.replace(problem, model=model)
    device_ids = None if context.device.type == "cpu" else [context.device.index]
    module = DistributedDataParallel(problem.model, device_ids=device_ids, **arguments)
    set_rate = getattr(module, "_set_ddp_runtime_logging_sample_rate", None)
    if set_rate is not None:
        set_rate(NEVER)
    return ModuleSession(
        problem=problem,
        context=context,
        module=module,
        optimizer=problem.make_optimizer(problem.model.parameters()),
        unsynchronised=module.no_sync,
        read_buckets=lambda: _bucket_bytes(module),
    )


def _bucket_bytes(module: DistributedDataParallel) -> list[int] | None:
    """The layout after DDP rebuilt its buckets, as it reports it; None before that."""
    read = getattr(module, "_get_ddp_logging_data", None)
    text = str(read().get("rebuilt_bucket_sizes", "")) if read is not None else ""
    return [int(size) for size in text.split(",") if size.strip()] or None


STRATEGIES = (
    Strategy(
        name="ddp",
        summary="DistributedDataParallel: one replica a device, gradients all-reduced in buckets",
        processes="per_device",
        communicates=True,
        can_skip_sync=True,
        reference=reference,
        options=DDPOptions,
        check=check,
        prepare=prepare,
    ),
)
