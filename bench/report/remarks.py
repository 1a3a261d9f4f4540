"""Sentences on where communication binds, on what has no figure, and on what not to trust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.analyze.effort import relative_width
from bench.analyze.ranking import exposed_share, sync_share, wait_share
from bench.analyze.rows import Row
from bench.errors import plural
from bench.report.naming import MOST_NAMED, Names, listed

BINDS, MAY_BIND = 0.25, 0.15
"""Shares from which communication is said to bind, and to be near to it: one look does not tell a
fifth from a little more or less."""
CONTRADICTS = "communication_contradicts"
MEANING = "sync: share of forward and backward; exposed: share of a profiled step"
WRONG = {
    "ranks_differ": "ranks ended with different parameters",
    "duplicate_data": "ranks trained on the same samples",
}
DOUBTS = {
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
}
"""Flags that speak against a figure, with the reason in few words; the worst first."""
OF_COMMUNICATION = {
    CONTRADICTS: "its figures contradict each other",
    "profile_slowed": "the profile slowed the step, so that its figures are too high",
}
"""Likewise, against what is said of communication alone."""


class Bound(NamedTuple):
    """How much communication weighs in a row's step, by each way to tell."""

    row: Row
    sync: float | None
    exposed: float | None

    @property
    def share(self) -> float:
        """The larger: where communication runs on the cores that compute, little is exposed."""
        return max(self.sync or 0.0, self.exposed or 0.0)

    @property
    def words(self) -> str:
        """Both in short."""
        pairs = (("sync", self.sync), ("exposed", self.exposed))
        return ", ".join(f"{name} {share:.0%}" for name, share in pairs if share is not None)


def communication(rows: Sequence[Row], names: Names) -> Iterator[str]:
    """Where it binds, on most devices on which it is known; and why rows gain nothing."""
    known = [
        found
        for row in rows
        if not row.is_proved_wrong
        and (found := _bound(row)) is not None
        and row.case.world_size > 1
    ]
    size = max((one.row.case.world_size for one in known), default=0)
    there = [one for one in known if one.row.case.world_size == size]
    there.sort(key=lambda one: -one.share)
    yield from _binding(there, f"on {plural(size, 'device')}", names)
    slow = [row for row in rows if row.speedup.verdict == "slower" and row.case.world_size > 1]
    for row in slow[:MOST_NAMED]:
        yield f"{names.sized(row)} is slower than one device: {_why_slow(row)}."
    if len(slow) > MOST_NAMED:
        yield f"{len(slow) - MOST_NAMED} more rows are slower than one device."


def _bound(row: Row) -> Bound | None:
    """None where nothing is known of it, or its figures contradict each other."""
    sync, exposed = sync_share(row), exposed_share(row)
    is_unknown = sync is None and exposed is None
    return None if is_unknown or CONTRADICTS in row.flags else Bound(row, sync, exposed)


def _binding(there: Sequence[Bound], where: str, names: Names) -> Iterator[str]:
    """Where communication binds, where it may, or that it does not.

    Args:
        there: the largest share first.
        where: on how many devices.
        names: of the rows.
    """
    bound = [one for one in there if one.share >= BINDS]
    near = [one for one in there if MAY_BIND <= one.share < BINDS]
    texts = [[f"{names(one.row)} ({one.words})" for one in some] for some in (bound, near)]
    meaning = f" ({MEANING})"
    if bound:
        yield f"Communication binds {where}{meaning}: {listed(texts[0])}."
        meaning = ""
    if near:
        yield (
            f"Communication may bind {where}, which one look does not tell{meaning}: "
            f"{listed(texts[1])}."
        )
    if there and not bound and not near:
        parts = [
            f"{share:.0%} {what} ({names(row)})"
            for what, share, row in (
                ("of forward and backward is synchronising gradients", *_most(there, "sync")),
                (
                    "of a profiled step is communication that nothing hides",
                    *_most(there, "exposed"),
                ),
            )
            if share is not None
        ]
        yield f"Communication does not bind {where}: at most {' and '.join(parts)}."


def _most(there: Sequence[Bound], name: str) -> tuple[float | None, Row]:
    most = max(there, key=lambda one: getattr(one, name) or 0.0)
    return getattr(most, name), most.row


def _why_slow(row: Row) -> str:
    """Where its step goes, as far as anything tells."""
    if _bound(row) is None:
        return "no profile says why"
    sync, exposed, waiting = sync_share(row), exposed_share(row), wait_share(row)
    parts = []
    if sync is not None:
        parts.append(f"synchronising gradients takes {sync:.0%} of forward and backward")
    if exposed is not None:
        told = f"{exposed:.0%} of a profiled step is communication that nothing hides"
        told += f", {waiting:.0%} waiting for late ranks" if waiting and waiting >= 0.01 else ""
        rest = 1 - exposed - (waiting or 0.0)
        if sync is None and rest > 0:
            told += f", {rest:.0%} computation and all else"
        parts.append(told)
    return "; ".join(parts)


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
    for what, flags in (("", DOUBTS), ("the communication of ", OF_COMMUNICATION)):
        reasons: dict[str, list[str]] = {}
        for flag, why in flags.items():
            some = [row for row in measured if flag in row.flags]
            if some:
                which = _which(some, measured, names, every="any of the")
                reasons.setdefault(which, []).append(why)
        for which, whys in reasons.items():
            yield f"Do not lean on {what}{which}: {'; '.join(whys)}."
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
            reasons.append(_page_faults(base, unlike, names))
        if reasons:
            yield f"Do not lean on speedups over {names.sized(base)}: {'; '.join(reasons)}."


def _page_faults(base: Row, unlike: Sequence[Row], names: Names) -> str:
    """How much more of one row's step they take than of another's."""
    told = [
        f"{row.page_fault_share:.0%} of {names.sized(row)}'s"
        for row in unlike
        if row.page_fault_share is not None
    ]
    if base.page_fault_share is None or len(told) < len(unlike):
        who, this = names.many(unlike, sized=True), "this baseline"
        pair = (this, who) if "page_faults" in base.flags else (who, this)
        return f"page faults slow {pair[0]} down, and not {pair[1]}"
    return f"page faults take {base.page_fault_share:.0%} of its step, and {listed(told)}"


def _widths(measured: Sequence[Row], names: Names) -> Iterator[str]:
    """How far the figures are known that are known worst."""
    wide = [row for row in measured if "imprecise" in row.flags]
    halves = [relative_width(row.samples_per_s) for row in wide if row.samples_per_s is not None]
    known = sorted(half for half in halves if half is not None)
    if not known:
        return
    ends = dict.fromkeys(f"± {half:.0%}" if half < 1 else "worse than ± 100%" for half in known)
    size = " to ".join([*ends][:: max(1, len(ends) - 1)])
    are, which = ("is", "The figure") if len(wide) == 1 else ("are", "Figures")
    yield f"{which} of {_which(wide, measured, names)} {are} known to {size} only."


def _which(some: Sequence[Row], rows: Sequence[Row], names: Names, *, every: str = "all") -> str:
    if len(some) == len(rows) > 1:
        return "both rows" if every == "all" and len(rows) == 2 else f"{every} {len(rows)} rows"
    return names.many(some, sized=True)
