"""Which of DDP's settings do not go together, or not with a workload: the reason and the remedy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch.nn.parallel import DistributedDataParallel

from bench.plan.case import Case
from bench.strategies import comm_hooks, hierarchical
from bench.strategies.compiling import cannot_split
from bench.strategies.ddp_options import DDPOptions
from workloads.base import Facts

DEFAULT = DDPOptions()


def refusal(facts: Facts, case: Case, options: DDPOptions) -> str | None:
    """Why the case cannot run with these options, or would not do what they say."""
    for rules in (_of_the_workload(facts, case, options), _of_the_settings(case, options)):
        for applies, reason in rules:
            if applies:
                return reason
    return _of_the_hook(facts, case, options) or _of_compiling(case, options)


def _of_compiling(case: Case, options: DDPOptions) -> str | None:
    """Whether the compiler can cut the graph at the buckets."""
    if case.compile == "none":
        return None
    # Of several caps the compiler is told the largest alone.
    largest_mb = max(options.bucket_cap_mb_list or [], default=options.bucket_cap_mb)
    return None if largest_mb is None else cannot_split(int(largest_mb * 2**20))


def accepts(argument: str) -> bool:
    """Whether the installed torch's DDP has an argument of that name."""
    return argument in inspect.signature(DistributedDataParallel).parameters


def _of_the_workload(facts: Facts, case: Case, options: DDPOptions) -> Iterator[tuple[bool, str]]:
    """(whether it applies, reason) of what the workload has or lacks."""
    finds = options.find_unused_parameters or options.static_graph
    yield (
        facts.has_sparse_gradients and case.backend == "nccl",
        "NCCL cannot all-reduce sparse gradients; use dense ones, or backend gloo",
    )
    yield (
        facts.has_unused_parameters and not finds,
        "DDP waits for gradients that never come, and fails in the second step: some parameters "
        "are unused; set find_unused_parameters or static_graph",
    )
    yield (
        options.sync_batchnorm and not facts.has_batch_norm,
        "sync_batchnorm has nothing to do: this workload has no batch norm",
    )
    yield (
        options.sync_batchnorm and case.device == "cpu",
        "SyncBatchNorm needs an accelerator: torch refuses modules on a CPU",
    )


def _of_the_settings(case: Case, options: DDPOptions) -> Iterator[tuple[bool, str]]:
    """(whether it applies, reason) of settings that exclude each other, or do nothing."""
    is_local, powersgd = options.local_sgd_period is not None, options.comm_hook == "powersgd"
    sets_rank = options.powersgd_rank != DEFAULT.powersgd_rank
    sets_start = options.powersgd_start != DEFAULT.powersgd_start
    yield (
        options.bucket_cap_mb_list is not None and not accepts("bucket_cap_mb_list"),
        "the installed torch has no bucket_cap_mb_list; use bucket_cap_mb, or a newer torch",
    )
    yield (
        options.bucket_cap_mb_list is not None and options.bucket_cap_mb is not None,
        "torch ignores bucket_cap_mb where bucket_cap_mb_list is given; leave one of them out",
    )
    yield (
        options.find_unused_parameters and options.static_graph,
        "a static graph finds unused parameters by itself, and torch ignores the search for them; "
        "leave find_unused_parameters out",
    )
    yield (
        not powersgd and (sets_rank or sets_start),
        "powersgd_rank and powersgd_start do nothing without comm_hook: powersgd",
    )
    yield (
        options.local_sgd_start != DEFAULT.local_sgd_start and not is_local,
        "local_sgd_start does nothing without local_sgd_period",
    )
    yield (
        options.local_sgd_period == 1,
        "averaging the parameters in each step costs what DDP's gradients cost, and saves nothing; "
        "use a local_sgd_period of 2 or more, or leave it out",
    )
    yield (
        is_local and options.comm_hook != "none",
        "DDP takes one hook, and post-local SGD is one; leave comm_hook or local_sgd_period out",
    )
    yield (
        is_local and case.precision == "fp16-amp",
        "a rank whose gradient scaler skips a step would not come to the average, and the others "
        "wait for it; use bf16-amp, or leave local_sgd_period out",
    )


def _of_the_hook(facts: Facts, case: Case, options: DDPOptions) -> str | None:
    hook = options.comm_hook
    if hook == "none":
        return None
    refusal = comm_hooks.refusal(hook, powersgd_start=options.powersgd_start)
    if refusal is not None:
        remedy = "a powersgd_start of 2 or more" if hook == "powersgd" else "comm_hook: fp16"
        return f"the installed torch refuses the {hook} hook: {refusal.rstrip('.')}; use {remedy}"
    if hook == "hierarchical":
        return _of_levels(facts, case)
    if hook == "powersgd":
        return _of_powersgd(facts, case)
    if facts.has_sparse_gradients and not comm_hooks.adds_sparse(hook):
        return f"the installed torch cannot add sparse gradients in {hook}; use dense ones, or bf16"
    return None


def _of_levels(facts: Facts, case: Case) -> str | None:
    if facts.has_sparse_gradients:
        return "a hierarchical all-reduce cannot share out sparse gradients; use dense ones"
    return hierarchical.refusal(case)


def _of_powersgd(facts: Facts, case: Case) -> str | None:
    if facts.has_sparse_gradients:
        # Tried: nothing fails, but ranks end with different gradients.
        return "powersgd compresses matrices, and loses sparse gradients; use dense ones"
    if case.precision == "fp16-amp":
        return (
            "powersgd keeps what it left out, and so the first overflow of a scaled gradient for "
            "ever; use bf16-amp, or comm_hook: fp16"
        )
    return None
