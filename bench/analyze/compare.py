"""Two runs of equal cases: what became faster or slower, and what is noise.

The figures, intervals and verdicts are those of a report (``analyze.stats``, ``analyze.verdicts``),
with the rows of both runs in place of one's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bench.analyze.checks import FLAGS
from bench.analyze.others import measured_against, unusable
from bench.analyze.reach import are_alike, visible_of
from bench.analyze.rows import Comparison, Row, family, noise_among
from bench.analyze.stats import Estimate, Noise, figure_of, holm
from bench.analyze.verdicts import noise_floor, verdict_of
from bench.plan.case import Case
from bench.records.environment import Difference, differences
from bench.records.record import RunInfo

CONDITIONS = frozenset(
    {
        "other_programs",
        "stolen",
        "throttled",
        "mixed_devices",
        "noisy",
        "drifting",
        "bimodal",
        "warmup_not_over",
        "loss_not_finite",
        "steps_skipped",
    }
)
"""Flags of how a figure was made that must be told where the other one does not have them."""
ONE_WAY = 0.9
"""Share of pairs that became slower, or faster, in which a whole run moved."""
LEAST_PAIRS = 5
"""Pairs that can say whether all of them moved alike."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs."""

    name: str
    """As it was named to us."""
    info: RunInfo
    rows: list[Row]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The same case in both runs."""

    base: Row
    new: Row
    change: Comparison
    """Of the new throughput over the old; or why there is none."""
    smallest: float | None = None
    """The least true slowdown that is called clear in four of five such comparisons, were it the
    clearest of all, such as 0.05; None where none would be."""
    notes: list[str] = []
    """What speaks against reading the change as it stands."""

    @property
    def is_lost(self) -> bool:
        """Whether it had a figure to rely on, and has none any more."""
        return unusable(self.base) is None and (
            self.new.samples_per_s is None or self.new.is_proved_wrong
        )


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs say about each other."""

    base: Side
    new: Side
    pairs: list[Pair]
    """In the order of the new run."""
    only_base: list[Row]
    only_new: list[Row]
    unlike: list[Difference]
    """What the environments do not share; nothing where changes are of the code alone."""
    shift: Estimate | None
    """By what all pairs changed together; None where they are few, or did not move alike."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Whether something became slower by so many percent."""

    percent: float
    regressions: list[Pair]
    """Clearly slower, and by that much at least."""
    lost: list[Pair]
    """Measured before, and not any more."""
    blind: list[Pair]
    """Not slower as far as one can see; but that much could not have been seen."""
    unjudged: list[Pair]
    """Not compared, for another reason."""

    @property
    def has_failed(self) -> bool:
        """Whether a regression was found."""
        return bool(self.regressions or self.lost)


def compared(base: Side, new: Side) -> Compared:
    """Pair the cases of two runs and judge each pair.

    Raises:
        TypeError, AttributeError: an environment is none.
    """
    found = list(_paired(base.rows, new.rows))
    noise = noise_among([*base.rows, *new.rows])
    floors = _Floors(base.rows, new.rows)
    comparable = [(pair, _against(pair, base.info, new.info, noise)) for pair in found]
    chances = [change.chance for _, change in comparable if change.chance is not None]
    corrected = iter(holm(chances))
    pairs: list[Pair] = []
    for pair, change in comparable:
        floor, smallest, told = floors.of(pair.new.case), None, change
        if change.chance is not None and change.ratio is not None:
            told = msgspec.structs.replace(
                change, verdict=verdict_of(change.ratio, next(corrected), floor)
            )
            visible = visible_of(
                pair.new.figures, pair.base.figures, noise, len(chances), floor or 0.0
            )
            smallest = None if visible is None else -math.expm1(-visible)
        pairs.append(msgspec.structs.replace(pair, change=told, smallest=smallest))
    known = {row.case.id for pair in pairs for row in (pair.base, pair.new)}
    return Compared(
        base=base,
        new=new,
        pairs=pairs,
        only_base=[row for row in base.rows if row.case.id not in known],
        only_new=[row for row in new.rows if row.case.id not in known],
        unlike=differences(base.info.environment, new.info.environment),
        shift=_shift(pairs, noise),
    )


def judge(found: Compared, percent: float) -> Judgement:
    """What became slower by so many percent of its throughput.

    A regression is established where the verdict is *slower* and the change that much at least.
    """
    regressions, lost, blind, unjudged = [], [], [], []
    for pair in found.pairs:
        ratio = pair.change.ratio
        if pair.is_lost:
            lost.append(pair)
        elif ratio is None:
            unjudged.append(pair)
        elif pair.change.verdict == "slower" and ratio.value <= 1 - percent / 100:
            regressions.append(pair)
        elif pair.smallest is None or pair.smallest > percent / 100:
            blind.append(pair)
    return Judgement(
        percent=percent, regressions=regressions, lost=lost, blind=blind, unjudged=unjudged
    )


def _paired(base: Sequence[Row], new: Sequence[Row]) -> Iterable[Pair]:
    """Rows of equal cases: equal ids, or names and all settings that both versions know."""
    by_id = {row.case.id: row for row in base}
    ids = {row.case.id for row in new}
    left: dict[object, list[Row]] = {}
    for row in base:
        if row.case.id not in ids:
            left.setdefault(_name(row.case), []).append(row)
    names: dict[object, int] = {}
    for row in new:
        names[_name(row.case)] = names.get(_name(row.case), 0) + 1
    for row in new:
        before, notes = by_id.get(row.case.id), []
        if before is None:
            alike = left.get(_name(row.case), [])
            if len(alike) != 1 or names[_name(row.case)] != 1:
                continue
            before = alike[0]
            own, others = row.case.options, before.case.options
            if any(own[name] != others[name] for name in own.keys() & others.keys()):
                continue
            missing = ", ".join(sorted(own.keys() ^ others.keys()))
            notes = [f"only one of the two versions knows the options {missing}, at their default"]
        notes += [note for note in (_proof(before, "BASE"), _proof(row, "NEW")) if note]
        notes += _conditions(before, row)
        yield Pair(base=before, new=row, change=Comparison(reason="not compared"), notes=notes)


def _name(case: Case) -> object:
    """All that makes a case but its options, whose number grows: its label names those changed."""
    names = [name for name in case.__struct_fields__ if name not in {"id", "options"}]
    return msgspec.json.encode([getattr(case, name) for name in names], order="deterministic")


def _conditions(base: Row, new: Row) -> list[str]:
    """What was seen in one of the two runs alone, and may be the whole difference."""
    sides = (("BASE", base, new), ("NEW", new, base))
    return [
        f"in {side} only: {flag}: {FLAGS[flag]}"
        for side, row, other in sides
        for flag in row.flags
        if flag in CONDITIONS and flag not in other.flags
    ]


def _proof(row: Row, side: str) -> str | None:
    """What must be said of a figure that nothing proves."""
    if row.samples_per_s is None or (row.parity and row.parity.verdict != "not_checked"):
        return None
    reason = row.parity_note or "no proof was made"
    return f"not proved in {side}: {reason}"


def _against(pair: Pair, base: RunInfo, new: RunInfo, noise: Noise) -> Comparison:
    for row, info, side in ((pair.base, base, "BASE"), (pair.new, new, "NEW")):
        reason = unusable(row)
        if reason == "not measured":
            reason = row.status.replace("_", " ") + (f": {row.reason}" if row.reason else "")
        if reason is None and "unequal_environments" in row.flags:
            reason = "launches in different environments"
        if reason is None and row.environment != info.environment_fingerprint:
            reason = "measured in another environment than the rest of its run"
        if reason is not None:
            return Comparison(reason=f"{side}: {reason}")
    return measured_against(pair.new, pair.base, noise)


class _Floors:
    """The larger of both runs' noise floors, for the table that a pair stands in."""

    def __init__(self, *runs: Sequence[Row]) -> None:
        self._tables: list[dict[object, list[Row]]] = []
        self._known: dict[object, float | None] = {}
        for rows in runs:
            tables: dict[object, list[Row]] = {}
            for row in rows:
                tables.setdefault(family(row.case), []).append(row)
            self._tables.append(tables)

    def of(self, case: Case) -> float | None:
        key = family(case), case.world_size
        if key not in self._known:
            floors = [noise_floor(one.get(key[0], []), key[1]) for one in self._tables]
            known = [floor for floor in floors if floor is not None]
            self._known[key] = max(known) if known else None
        return self._known[key]


def _shift(pairs: Sequence[Pair], noise: Noise) -> Estimate | None:
    """What moved all pairs: their ratios agree within their noise, or nearly all go one way.

    A change of some cases alone has a mean, too, and is no day on which the machine was slower.
    """
    moved = [pair for pair in pairs if pair.change.chance is not None]
    ratios = [pair.change.ratio.value for pair in moved if pair.change.ratio is not None]
    if len(ratios) < LEAST_PAIRS:
        return None
    down = sum(ratio < 1 for ratio in ratios)
    is_one_way = max(down, len(ratios) - down) >= ONE_WAY * len(ratios)
    figures = [(pair.new.figures, pair.base.figures) for pair in moved]
    return figure_of(ratios) if is_one_way or are_alike(figures, noise) else None


def counts(found: Compared) -> Mapping[str, int]:
    """How many pairs there are of each verdict, or without one."""
    verdicts = [
        pair.change.verdict or ("not compared" if pair.change.ratio is None else "of one launch")
        for pair in found.pairs
    ]
    names = ("slower", "faster", "no clear difference", "of one launch", "not compared")
    return {name: verdicts.count(name) for name in names if name in verdicts}
