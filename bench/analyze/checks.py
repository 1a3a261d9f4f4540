"""Flags that need more than one record, or a look at its raw times: derived when reading.

``FLAGS`` says in words what each flag means, those seen while measuring included.
"""

from __future__ import annotations

from bench.analyze.stats import Estimate

SUPERLINEAR = 1.05
"""Factor over the number of devices from which a speedup asks for an explanation, if all of its
interval lies above that number."""
WIDE = 0.1
"""Half width of an interval, relative to the figure, that says little."""
SLOWED = 1.25
"""Times a timed step that a profiled one may take before its figures are not the timed step's."""

FLAGS = {
    "oversubscribed": "more devices than sets of cores: nothing follows about scaling",
    "no_warmup": "no step before the window: start-up costs are in the figure",
    "ranks_differ": "the ranks ended with different parameters",
    "duplicate_data": "ranks trained on the same samples",
    "superlinear": "more speedup than devices: the baseline is too slow, or caches or the allocator"
    " explain it",
    "imprecise": "the interval is wider than 10 % either way: more launches would narrow it",
    "profile_slowed": "a step took a quarter longer, or more, while the profile ran: its"
    " communication figures are too high",
    "page_faults": "more than a twentieth of the step goes into memory that the allocator gives"
    " back to the system and asks for again, which says nothing of the strategy",
    "reference_implementation": "DataParallel's algorithm carried out on sets of cores, since"
    " torch's own class does nothing on a CPU; it copies within one memory, so that its place among"
    " the others does not carry over to devices",
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


def derived_flags(
    *,
    devices: int,
    speedup: Estimate | None,
    rate: Estimate | None,
    step_s: float | None,
    profiled_step_s: float | None,
) -> list[str]:
    """Flags that follow from a row's own spread, and from its comparison with others.

    Args:
        devices: of the row.
        speedup: over one device; None for that one itself.
        rate: throughput.
        step_s: a step of the timing pass.
        profiled_step_s: a step while the communication pass's profile ran.
    """
    flags: list[str] = []
    if speedup is not None:
        is_sure = speedup.low is None or speedup.low > devices
        if is_sure and speedup.value > SUPERLINEAR * devices:
            flags.append("superlinear")
    if rate is not None and rate.half_width is not None and rate.half_width > WIDE * rate.value:
        flags.append("imprecise")
    if profiled_step_s and step_s and profiled_step_s > SLOWED * step_s:
        flags.append("profile_slowed")
    return flags
