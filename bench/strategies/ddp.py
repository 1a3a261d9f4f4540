"""``DistributedDataParallel``: a replica for each device, gradients averaged bucket by bucket.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.plan.case import Case, Machine
from bench.strategies import comm_hooks, ddp_check, hierarchical, local_sgd
from bench.strategies.base import Context, Reference, Session, Strategy
from bench.strategies.ddp_options import DDPOptions
from bench.strategies.module_session import ModuleSession
from bench.strategies.nature import Exactness, Rhythm
from bench.strategies.saving import Saving, whole
from workloads.base import Facts, Problem

NEVER = 10**9
"""Sampling rate of DDP's own timers that puts their host synchronisation out of the window."""


NOT_ARGUMENTS = frozenset(
    {
        "broadcast_buffers",
        "comm_hook",
        "powersgd_rank",
        "powersgd_start",
        "local_sgd_period",
        "local_sgd_start",
        "sync_batchnorm",
    }
)
"""Settings that are no arguments of DDP's constructor, or not under that name."""


def check(facts: Facts, case: Case, machine: Machine) -> str | None:
    """Whether torch, the backend and the workload go together with the settings."""
    del machine
    return ddp_check.refusal(facts, case, msgspec.convert(case.options, DDPOptions))


def flags(facts: Facts, case: Case) -> Sequence[str]:
    """What some settings cost, or cannot show, on the workload or the backend."""
    options = msgspec.convert(case.options, DDPOptions)
    is_powersgd, is_local = options.comm_hook == "powersgd", options.local_sgd_period is not None
    # The search copies to the host which parameters were used, once some may not have been.
    searches = options.find_unused_parameters and facts.has_unused_parameters
    waits = is_powersgd or is_local or searches
    in_turn = options.comm_hook in {"powersgd", "hierarchical"}
    found = {
        "overhead_only": options.find_unused_parameters and not facts.has_unused_parameters,
        "no_buffers": not options.broadcast_buffers and not facts.has_batch_norm,
        "hook_in_turn": in_turn and case.backend == "gloo",
        "allocations_unseen": is_powersgd and case.device == "cpu",
        "host_waits": waits and case.device != "cpu",
    }
    return [flag for flag, applies in found.items() if applies]


def reference(options: Mapping[str, Any]) -> Reference:
    """With ``sync_batchnorm``, the model sees the whole batch at once."""
    return "whole_batch" if options.get("sync_batchnorm") else "micro_batches"


def exactness(options: Mapping[str, Any]) -> Exactness:
    """Lossy with a hook, local with post-local SGD, else exact."""
    read = msgspec.convert(options, DDPOptions)
    if read.local_sgd_period is not None:
        return local_sgd.EXACTNESS
    return comm_hooks.EXACTNESS[read.comm_hook]


def rhythm(options: Mapping[str, Any]) -> Rhythm:
    """Plain DDP comes before powersgd and before post-local SGD, which has periods."""
    read = msgspec.convert(options, DDPOptions)
    if read.local_sgd_period is not None:
        return local_sgd.rhythm(start=read.local_sgd_start, period=read.local_sgd_period)
    return Rhythm(settle_steps=read.powersgd_start if read.comm_hook == "powersgd" else 0)


def in_few_steps(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The least start that torch allows, and the shortest period."""
    if options.get("local_sgd_period") is not None:
        return local_sgd.in_few_steps(options)
    return {**options, "powersgd_start": comm_hooks.POWERSGD_LEAST_START}


def group_sizes(case: Case) -> Sequence[int]:
    """Ranks of a host, and hosts, where gradients are reduced by levels."""
    if case.options.get("comm_hook") != "hierarchical":
        return [case.world_size]
    return [case.world_size // case.nodes, case.nodes]


def operation_ranks(case: Case) -> Mapping[str, int]:
    """Of the levels, where gradients are reduced by them.

    The message of ``find_unused_parameters``, a few bytes to all ranks, counts as one of theirs.
    """
    if case.options.get("comm_hook") != "hierarchical":
        return {}
    return hierarchical.operation_ranks(case)


def saving(options: Mapping[str, Any], world_size: int) -> Saving:
    """Rank 0 has all there is, but for what a hook or an average of ranks keeps beside it."""
    read = msgspec.convert(options, DDPOptions)
    if read.local_sgd_period is not None:
        return Saving(
            form="none",
            reason="ranks train apart between averages, so that rank 0's state is not all of it",
        )
    if read.comm_hook == "powersgd":
        return Saving(
            form="none",
            reason="PowerSGD keeps what a rank has not sent yet, which no state_dict holds",
        )
    return whole(options, world_size)


def prepare(problem: Problem, context: Context) -> Session:
    """Wrap, register the hook if any, then build the optimizer over the same parameters."""
    options: DDPOptions = context.options
    if options.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(problem.model)  # type: ignore[no-untyped-call]
        problem = dataclasses.replace(problem, model=model)
    device_ids = None if context.device.type == "cpu" else [context.device.index]
    module = DistributedDataParallel(problem.model, device_ids=device_ids, **arguments(options))
    set_rate = getattr(module, "_set_ddp_runtime_logging_sample_rate", None)
    if set_rate is not None:
        set_rate(NEVER)
    _register_hook(module, context, options)
    optimizer = problem.make_optimizer(problem.model.parameters())
    parts: dict[str, Any] = {
        "problem": problem,
        "context": context,
        "module": module,
        "unsynchronised": _region(module, context, options),
        "read_buckets": lambda: _bucket_bytes(module),
    }
    if options.local_sgd_period is None:
        return ModuleSession(optimizer=optimizer, **parts)
    averaging = local_sgd.averaging(
        optimizer, start=options.local_sgd_start, period=options.local_sgd_period
    )
    return local_sgd.LocalSession(optimizer=averaging, averaging=averaging, **parts)


def arguments(options: DDPOptions) -> dict[str, Any]:
    """What DDP's constructor is passed: only settings that differ from torch's defaults."""
    passed = {name: value for name, value in options.changed().items() if name not in NOT_ARGUMENTS}
    if not options.broadcast_buffers:
        # The old name warns where there is a new one.
        new = ddp_check.accepts("forward_sync_buffers")
        passed["forward_sync_buffers" if new else "broadcast_buffers"] = False
    return passed


def _register_hook(module: DistributedDataParallel, context: Context, options: DDPOptions) -> None:
    def calls_in(steps: int) -> int:
        return comm_hooks.calls_in(steps, context, static_graph=options.static_graph)

    if options.local_sgd_period is not None:
        local_sgd.register(module, start=calls_in(options.local_sgd_start))
    elif options.comm_hook != "none":
        comm_hooks.register(
            module,
            options.comm_hook,
            context=context,
            powersgd_rank=options.powersgd_rank,
            powersgd_start=calls_in(options.powersgd_start),
        )


Region = Callable[[], AbstractContextManager[object]]


def _region(module: DistributedDataParallel, context: Context, options: DDPOptions) -> Region:
    """Where backward leaves gradients local."""
    if options.static_graph and context.accumulation_steps > 1:
        return FirstSynchronised(module.no_sync)
    return module.no_sync


class FirstSynchronised:
    """Regions without synchronisation, the very first of which has it all the same.

    The first backward of a static graph must synchronise (pytorch#143580). What it leaves, the mean
    of all ranks' gradients of that micro-step, takes part in the next synchronisation as any
    rank's own does, and their mean is the same.

    Args:
        no_sync: makes the other regions.
    """

    def __init__(self, no_sync: Region) -> None:
        self._no_sync = no_sync
        self._is_first = True

    def __call__(self) -> AbstractContextManager[object]:
        """The next region."""
        if self._is_first:
            self._is_first = False
            return contextlib.nullcontext()
        return self._no_sync()


def _bucket_bytes(module: DistributedDataParallel) -> list[int] | None:
    """The layout after DDP rebuilt its buckets, as it reports it; empty before that.

    While it searches for unused parameters it never rebuilds them: then those that it began with.
    """
    read = getattr(module, "_get_ddp_logging_data", None)
    if read is None:
        return None
    found = read()
    keeps = module.find_unused_parameters and not module.static_graph
    text = str(found.get("bucket_sizes" if keeps else "rebuilt_bucket_sizes", ""))
    return [int(size) for size in text.split(",") if size.strip()]


STRATEGIES = (
    Strategy(
        name="ddp",
        summary="DistributedDataParallel: one replica a device, gradients all-reduced in buckets",
        processes="per_device",
        communicates=True,
        can_skip_sync=True,
        reference=reference,
        options=DDPOptions,
        exactness=exactness,
        group_sizes=group_sizes,
        operation_ranks=operation_ranks,
        rhythm=rhythm,
        in_few_steps=in_few_steps,
        saving=saving,
        flags=flags,
        check=check,
        prepare=prepare,
    ),
)
