"""What is said beside the table of where time and memory go."""

from __future__ import annotations

from collections.abc import Iterator

from bench.analyze.checks import straggler
from bench.analyze.rhythm import period_of
from bench.analyze.rows import Row

GATHER, IN_OPTIMIZER = "all_gather", "zero"
"""Operation that brings parameters together; strategy that sends them in its optimizer."""


def notes_of_details(row: Row) -> Iterator[str]:
    """What figures of time do not say by themselves."""
    if row.samples_per_s is not None and row.own_speedup.reason is not None:
        yield f"not compared with itself: {row.own_speedup.reason}"
    yield from sync_notes(row)
    if (late := _late_note(row)) is not None:
        yield late


def _late_note(row: Row) -> str | None:
    """Which rank the others wait for, where one stands out."""
    found = row.communication
    rank = None if found is None else straggler(found)
    if found is None or rank is None or not found.wait_s:
        return None
    return (
        f"the others wait for rank {rank}: {found.wait_s * 1e3:.0f} ms a step, and it causes"
        f" {found.late_share:.0%} of all waiting"
    )


def sync_notes(row: Row) -> Iterator[str]:
    """What the cost of synchronisation leaves out, or why there is none."""
    if row.sync_cost is None:
        if period_of(row.case) > 1 and row.communication is not None:
            yield "no sync cost: ranks synchronise in the optimizer, which it leaves out"
        return
    operations = row.communication.collectives or [] if row.communication is not None else []
    if any(one.op == GATHER for one in operations):
        yield "sync cost: of gradients only; gathers of parameters go on without it"
    elif row.case.strategy == IN_OPTIMIZER:
        yield "sync cost: of gradients only; the optimizer, which sends parameters, is left out"
    if row.sync_cost.high is not None and row.sync_cost.high < 0:
        yield (
            "sync cost: below 0, which cannot be: steps without synchronisation met worse"
            " conditions than those with it"
        )
    elif row.sync_cost.low is None or row.sync_cost.low <= 0:
        yield "sync cost: too small to be told from the noise of its launch"
