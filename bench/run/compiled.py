"""How what the ranks of a launch have compiled becomes a section of its record."""

from __future__ import annotations

from collections.abc import Sequence

from bench.measure.compilation import most_frequent
from bench.plan.case import Case
from bench.records.record import Compilation
from bench.run.handover import RankOutcome

CAPTURING = frozenset({"reduce-overhead", "max-autotune"})
"""Modes that replay CUDA graphs."""


def compilation_of(case: Case, outcomes: Sequence[RankOutcome]) -> Compilation | None:
    """What all ranks have compiled together; None where nothing was to be.

    Args:
        case: what ran.
        outcomes: of its ranks.
    """
    found = [one.compiled for one in outcomes if one.compiled is not None]
    if not found:
        return None
    return Compilation(
        mode=case.compile,
        scope=case.compile_scope,
        graphs=min(one.graphs for one in found),
        parts=min(one.parts for one in found),
        operations=min(one.operations for one in found),
        uncompiled=max(one.uncompiled for one in found),
        over_limit=max(one.over_limit for one in found),
        breaks=max(one.breaks for one in found),
        reasons=most_frequent([one.reasons for one in found]) or None,
        recompiles=max(one.recompiles for one in found),
        recompiles_in_window=max(one.in_window for one in found),
        compile_s=[one.compile_s for one in found],
        cache_hits=sum(one.cache_hits for one in found),
        cache_misses=sum(one.cache_misses for one in found),
        cudagraph_skips=max(one.cudagraph_skips for one in found),
        autotuned=min(one.autotuned for one in found),
        ddp_mode=found[0].ddp_mode,
    )


def flags_of_compilation(case: Case, compilation: Compilation | None) -> list[str]:
    """What must be said of figures of a model that was, or was not, compiled."""
    if compilation is None:
        return []
    if compilation.graphs == 0:
        return ["not_compiled"]
    seen = {
        "recompiled": compilation.recompiles_in_window > 0,
        "partly_compiled": compilation.over_limit > 0,
        "nothing_autotuned": case.compile == "max-autotune" and compilation.autotuned == 0,
        "no_cuda_graphs": captures(case) and compilation.cudagraph_skips > 0,
        "captured": captures(case),
    }
    return [flag for flag, is_seen in seen.items() if is_seen]


def captures(case: Case) -> bool:
    """Whether the case's graphs are captured: what they allocate is then no longer counted."""
    return case.compile in CAPTURING and case.device != "cpu"
