"""Flags that need more than one record, or a look at its raw times: derived when reading.

``FLAGS`` says in words what each flag means, those seen while measuring included.
"""

from __future__ import annotations

from bench.analyze.stats import Estimate
from bench.plan.case import Case

SUPERLINEAR = 1.05
"""Factor over the number of devices from which a speedup asks for an explanation."""

FLAGS = {
    "oversubscribed": "more ranks than sets of cores: nothing follows about scaling",
    "no_warmup": "no step before the window: start-up costs are in the figure",
    "ranks_differ": "the ranks ended with different parameters",
    "duplicate_data": "ranks trained on the same samples",
    "superlinear": "more speedup than devices: the baseline is too slow, or caches explain it",
    "reference_implementation": "DataParallel's algorithm carried out on sets of cores, since"
    " torch's own class does nothing on a CPU",
    "no_sharding": "one device: there is nothing to shard",
    "fsdp_over_gloo": "gloo's reduce-scatter costs as much as an all-reduce, its all-gather is"
    " slow, and nothing overlaps: this says little about FSDP over NCCL",
    "fsdp_autocast": "autocast keeps a narrow copy of every weight from forward to backward and"
    " gathers wide ones; FSDP's own mixed precision, not part of this version, does neither",
    "shared_cores": "communication runs on the cores of the computation: what is hidden there is"
    " time-slicing",
    "allocations_drift": "no figure of tensor memory: not all that is released was seen",
    "unequal_environments": "launches of this case ran in different environments",
}


def derived_flags(case: Case, speedup: Estimate | None) -> list[str]:
    """Flags that follow from a row's comparison with others.

    Args:
        case: of the row.
        speedup: against one device, if there is one.
    """
    is_superlinear = (
        speedup is not None
        and case.world_size > 1
        and speedup.value > SUPERLINEAR * case.world_size
    )
    return ["superlinear"] if is_superlinear else []
