"""Sentences on where communication binds, on what has no figure, and on what not to trust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.analyze.ranking import exposed_share, wait_share
from bench.analyze.rows import Row
from bench.errors import plural
from bench.report.naming import MOST_NAMED, Names, listed

BINDS = 0.2
"""Share of a step from which communication that nothing hides is said to bind."""
WRONG = {
    "ranks_differ": "ranks ended with different parameters",
    "duplicate_data": "ranks trained on the same samples",
}
DOUBTS = {
    "communication_contradicts": "figures of communication do not go together",
    "oversubscribed": "more devices than cores",
    "ranks_share_cores": "processes took turns on one core",
    "no_warmup": "nothing was warmed up",
    "profiler_on": "something observed the program while it was timed",
    "recompiled": "something was compiled within the window",
    "throttled": "the devices were held back",
    "other_programs": "other programs ran meanwhile",
    "stolen": "the hypervisor gave the time to others",
    "mixed_devices": "the devices are not all of one kind",
    "unequal_environments": "launches ran in different environments",
    "loss_not_finite": "the loss was no finite number",
    "steps_skipped": "optimizer steps were skipped",
    "drifting": "figures rose or fell with time",
    "bimodal": "steps or launches stand around two levels",
    "warmup_not_over": "more warm-up steps are needed",
    "noisy": "launches lie far apart",
    "imprecise": "the interval is wider than 10 % either way",
    "superlinear": "more speedup than devices",
    "profile_slowed": "the profile slowed the step, so that figures of communication are too high",
}
"""Flags that speak against a figure, with the reason in few words; the worst first."""


def communication(rows: Sequence[Row], names: Names) -> Iterator[str]:
    """Where it binds, on most devices on which it is known; and why rows gain nothing."""
    known = [
        (share, row)
        for row in rows
        if not row.is_proved_wrong
        and "communication_contradicts" not in row.flags
        and (share := exposed_share(row)) is not None
    ]
    size = max((row.case.world_size for _, row in known), default=0)
    there = sorted(
        ((share, row) for share, row in known if row.case.world_size == size),
        key=lambda pair: -pair[0],
    )
    bound = [(share, row) for share, row in there if share >= BINDS]
    where = f"on {plural(size, 'device')}"
    if bound:
        texts = [f"{names(row)} ({share:.0%} of a step)" for share, row in bound]
        yield f"Communication that nothing hides binds {where}: {listed(texts)}."
    elif there:
        share, row = there[0]
        yield (
            f"Communication does not bind {where}: at most {share:.0%} of a step is "
            f"communication that nothing hides ({names(row)})."
        )
    slow = [row for row in rows if row.speedup.verdict == "slower" and row.case.world_size > 1]
    for row in slow[:MOST_NAMED]:
        yield f"{names.sized(row)} is slower than one device: {_why_slow(row)}."
    if len(slow) > MOST_NAMED:
        yield f"{len(slow) - MOST_NAMED} more rows are slower than one device."


def _why_slow(row: Row) -> str:
    """Where its step goes, as far as a profile tells."""
    exposed, waiting = exposed_share(row), wait_share(row)
    if exposed is None or "communication_contradicts" in row.flags:
        return "no profile says why"
    parts = [f"{exposed:.0%} of its step is communication that nothing hides"]
    parts += [f"{waiting:.0%} waiting for late ranks"] if waiting and waiting >= 0.01 else []
    rest = 1 - exposed - (waiting or 0.0)
    return ", ".join(parts) + (f", {rest:.0%} computation and all else" if rest > 0 else "")


def missing(rows: Sequence[Row], names: Names) -> Iterator[str]:
    """Cases without a figure, by what became of them; a reason where all share it."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        if row.samples_per_s is None:
            kinds.setdefault(row.status, []).append(row)
    for status, some in kinds.items():
        reasons = {row.reason for row in some} - {None}
        why = f", {next(iter(reasons))}" if len(reasons) == 1 else ""
        what = status.replace("_", " ")
        yield f"No figure, {what}{why}: {names.many(some, sized=True)}."


def doubts(rows: Sequence[Row], names: Names) -> Iterator[str]:
    """Rows that are not to be trusted, and why."""
    measured = [row for row in rows if row.samples_per_s is not None]
    failed = [row for row in measured if row.is_proved_wrong]
    if failed:
        known = {flag: why for row in failed for flag, why in WRONG.items() if flag in row.flags}
        why = f" ({', '.join(known.values())})" if known else ""
        yield f"Wrong, did not train the same model{why}: {names.many(failed, sized=True)}."
    unproved = [
        row
        for row in measured
        if not row.is_proved_wrong and (row.parity is None or row.parity.verdict == "not_checked")
    ]
    if unproved:
        yield f"Not proved to train the same model: {_which(unproved, measured, names)}."
    reasons: dict[str, list[str]] = {}
    for flag, why in DOUBTS.items():
        some = [row for row in measured if flag in row.flags]
        if some:
            reasons.setdefault(_which(some, measured, names), []).append(why)
    for which, whys in reasons.items():
        yield f"Do not lean on {which}: {'; '.join(whys)}."


def _which(some: Sequence[Row], rows: Sequence[Row], names: Names) -> str:
    if len(some) == len(rows) > 1:
        return f"any of the {len(rows)} rows"
    return names.many(some, sized=True)
