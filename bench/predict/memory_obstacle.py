"""Cases whose memory cannot be predicted, each with its reason in words."""

from __future__ import annotations

import msgspec

from bench.plan.case import Case
from bench.plan.registry import find_strategy, find_workload
from workloads.base import Facts

MOST_DRIVEN = 16
"""Devices of one process, which are all gone through."""


def obstacle(case: Case) -> str | None:
    """Why the memory of a case cannot be predicted, in words; None where it can."""
    if case.strategy == "deepspeed":
        return (
            "DeepSpeed's engine reads its tensors while it trains, and lays out buffers of its own:"
            " no step of it runs on tensors without data; use zero or fsdp for what sharding saves"
        )
    if case.compile != "none":
        return (
            "what a compiler fuses, and so never stores, is known once it has compiled; predict "
            "with compile: none"
        )
    if case.options.get("sync_batchnorm"):
        return "SyncBatchNorm refuses modules of a CPU, on which this runs; predict without it"
    if case.options.get("cpu_offload"):
        return "with cpu_offload, tensors are on two devices, and only one is modelled"
    if _facts(case).has_sparse_gradients:
        return "torch's tracker cannot follow sparse gradients, which have no storage of their own"
    is_one = find_strategy(case.strategy).processes == "one"
    if is_one and case.world_size > MOST_DRIVEN:
        return f"one process drives all devices, and hardly more than {MOST_DRIVEN}"
    return None


def _facts(case: Case) -> Facts:
    workload = find_workload(case.workload)
    return workload.facts(msgspec.convert(case.workload_options, workload.options))
