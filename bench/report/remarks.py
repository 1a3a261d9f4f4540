"""Sentences on where communication binds, on what has no figure, and on what not to trust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.analyze.effort import relative_width
from bench.analyze.ranking import exposed_share, wait_share
from bench.analyze.rows import Row
from bench.errors import plural
from bench.report.naming import MOST_NAMED, Names, listed

BINDS, MAY_BIND = 0.25, 0.15
"""Shares of a step from which communication that nothing hides is said to bind, and to be near to
it: one profile does not tell a fifth from a little more or less."""
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
    yield from _binding(there, f"on {plural(size, 'device')}", names)
    slow = [row for row in rows if row.speedup.verdict == "slower" and row.case.world_size > 1]
    for row in slow[:MOST_NAMED]:
        yield f"{names.sized(row)} is slower than one device: {_why_slow(row)}."
    if len(slow) > MOST_NAMED:
        yield f"{len(slow) - MOST_NAMED} more rows are slower than one device."


def _binding(there: Sequence[tuple[float, Row]], where: str, names: Names) -> Iterator[str]:
    """Where communication binds, where it may, or that it does not.

    Args:
        there: share of a step and row, the largest share first.
        where: on how many devices.
        names: of the rows.
    """
    bound = [(share, row) for share, row in there if share >= BINDS]
    near = [(share, row) for share, row in there if MAY_BIND <= share < BINDS]
    texts = [[f"{names(r)} ({share:.0%} of a step)" for share, r in some] for some in (bound, near)]
    if bound:
        yield f"Communication that nothing hides binds {where}: {listed(texts[0])}."
    if near:
        yield (
            f"Communication that nothing hides may bind {where}, which one profile does not tell: "
            f"{listed(texts[1])}."
        )
    if there and not bound and not near:
        share, row = there[0]
        yield (
            f"Communication does not bind {where}: at most {share:.0%} of a step is "
            f"communication that nothing hides ({names(row)})."
        )


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
            which = _which(some, measured, names, every="any of the")
            reasons.setdefault(which, []).append(why)
    for which, whys in reasons.items():
        yield f"Do not lean on {which}: {'; '.join(whys)}."
    yield from _baselines(measured, names)
    yield from _widths(measured, names)


def _baselines(measured: Sequence[Row], names: Names) -> Iterator[str]:
    """Baselines whose speedups say something of themselves."""
    over: dict[str, list[Row]] = {}
    for row in measured:
        over.setdefault(row.speedup.against or "", []).append(row)
    for base in measured:
        rows = over.get(base.case.id, [])
        beaten = [row for row in rows if "superlinear" in row.flags]
        unlike = [row for row in rows if "page_faults_differ" in row.flags]
        reasons = []
        if beaten:
            has = "has" if len(beaten) == 1 else "have"
            reasons.append(
                f"{names.many(beaten, sized=True)} {has} more speedup than devices, so that this"
                " baseline is too slow, or caches explain it"
            )
        if unlike:
            who, this = names.many(unlike, sized=True), "this baseline"
            pair = (this, who) if "page_faults" in base.flags else (who, this)
            reasons.append(f"page faults slow {pair[0]} down, and not {pair[1]}")
        if reasons:
            yield f"Do not lean on speedups over {names.sized(base)}: {'; '.join(reasons)}."


def _widths(measured: Sequence[Row], names: Names) -> Iterator[str]:
    """How far the figures are known that are known worst."""
    wide = [row for row in measured if "imprecise" in row.flags]
    halves = [relative_width(row.samples_per_s) for row in wide if row.samples_per_s is not None]
    known = sorted(half for half in halves if half is not None)
    if not known:
        return
    low, high = f"{known[0]:.0%}", f"{known[-1]:.0%}"
    size = f"± {low}" if low == high else f"± {low} to ± {high}"
    are, which = ("is", "The figure") if len(wide) == 1 else ("are", "Figures")
    yield f"{which} of {_which(wide, measured, names)} {are} known to {size} only."


def _which(some: Sequence[Row], rows: Sequence[Row], names: Names, *, every: str = "all") -> str:
    if len(some) == len(rows) > 1:
        return "both rows" if every == "all" and len(rows) == 2 else f"{every} {len(rows)} rows"
    return names.many(some, sized=True)
