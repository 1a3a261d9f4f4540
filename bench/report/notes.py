"""What is said beside a table: footnotes of its rows, and what noise alone does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Literal

from bench.analyze.checks import FLAGS
from bench.analyze.rows import Comparison, Row
from bench.analyze.settings import PLAIN, WITHIN
from bench.analyze.verdicts import noise_floor
from bench.errors import plural
from bench.plan.case import Case
from bench.report.notes_details import notes_of_details, sync_notes
from bench.report.samples import notes_of_samples

Which = Literal[
    "scaling", "details", "batches", "checkpoints", "learning", "terminal", "settings", "changes"
]
"""The first table of a workload in a report, its second, those of largest batches, of checkpoints,
of learning, and the short one for a terminal; the table of its settings, and that for a
terminal."""
DETAILED_FLAGS = frozenset(
    {
        "shared_cores",
        "profile_slowed",
        "communication_contradicts",
        "straggler",
        "allocations_drift",
        "allocations_unseen",
    }
)
"""Flags that concern what the second table shows, too."""
SCALING_FLAGS = frozenset({"superlinear", "page_faults_differ"})
"""Flags of a comparison that tables of settings do not make."""
NAMED_BY_VALUE = ("precision", "optimizer", "backend", "link")
"""Fields whose values say what they are of."""
NAMED = (
    "compile",
    "compile_scope",
    "optimizer_kernels",
    "activation_checkpointing",
    "accumulation_steps",
    "accumulation_sync",
    "env",
    "latency_ms",
    "data_label",
)
"""Fields that are named beside their values."""
SHORT_NAMES = {"compile_scope": "scope", "data_label": "data"}
"""What such fields are called there, where it is not their own name."""
NOT_DONE = "asked for and not done"
NO_TASK = (
    "trained on the batches that it is timed with, since its workload names nothing to learn:"
    " these are few and come again, so that a loss may fall by heart, or they may be random"
)
FROM_CACHE = 0.5
"""Share of the longest time of compiling below which a launch has found what it needed."""
PLAIN_VALUES = {"latency_ms": None, **PLAIN, **{name: value for name, (_, value) in WITHIN.items()}}
LOOSE = {
    "precision": "another precision: does not train bit for bit the same",
    "compile": "compiled: may sum in another order, and so not train bit for bit the same",
}
"""Settings that tables of settings alone compare, and what must then be said."""
IN_PERCENT = 0.2
"""Noise floor above which it is given as a factor: there, more and less are not the same share."""
BEYOND_SHARES = 10.0
"""Relative error that is no share of anything any more."""
MOST_PLACES = 7
"""Decimal places of a share in percent: beyond, it is rounding in fp64."""
HOPELESS = 0.5
"""Noise floor above which strategies cannot be compared."""


class Footnotes:
    """Numbers the notes of one table; equal notes share a number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}
        self.common: list[str] = []
        """What is true of all rows, and so needs no number."""

    def number(self, rows: Sequence[Sequence[str]]) -> list[tuple[int, ...]]:
        """The numbers that stand beside each row.

        Args:
            rows: notes of each.
        """
        if len(rows) > 2:
            self.common = [note for note in rows[0] if all(note in row for row in rows)]
        return [self._marks([note for note in row if note not in self.common]) for row in rows]

    def _marks(self, notes: Sequence[str]) -> tuple[int, ...]:
        for note in notes:
            if note not in self._places:
                self.texts.append(note)
                self._places[note] = len(self.texts)
        return tuple(sorted(self._places[note] for note in notes))


def notes_of(row: Row, table: Which) -> list[str]:
    """Everything a reader must know of a row, in words."""
    if (own := _notes_of_pass(row, table)) is not None:
        return own
    notes = [] if row.status == "ok" else [f"{row.status}: {row.reason}"]
    notes += [f"{flag}: {FLAGS[flag]}" if flag in FLAGS else flag for flag in row.flags]
    if table == "terminal":  # which has no figures of communication
        notes = [note for note in notes if note.partition(":")[0] not in DETAILED_FLAGS]
    if table == "details":
        notes = [note for note in notes if note.partition(":")[0] in DETAILED_FLAGS]
        return list(dict.fromkeys([*notes, *notes_of_details(row)]))
    if table in {"settings", "changes"}:
        notes = [note for note in notes if note.partition(":")[0] not in SCALING_FLAGS]
        known = [] if table == "changes" else [*notes, *sync_notes(row)]  # a terminal has said them
        return list(dict.fromkeys([*known, *_notes_of_setting(row)]))
    notes += notes_of_samples(row)
    notes += _far_off(row)
    notes += [problem for problem in row.launch_problems if row.status == "ok"]
    if row.same_buckets_as is not None:
        notes.append(f"the same layout of buckets as {row.same_buckets_as}")
    if row.samples_per_s is not None and row.speedup.reason is not None:
        notes.append(f"no speedup: {row.speedup.reason}")
    notes += _gain(row)
    notes += _unclear("against ddp", row.peer)
    notes += _compiled(row)
    if row.twin is not None:
        notes += [f"second measurement, {problem}" for problem in row.twin.problems]
    if row.parity_note is not None:
        notes.append(f"parity {parity_of(row)}: {row.parity_note}")
    if deviation := deviation_of(row):
        notes.append(f"{parity_of(row)}, {deviation}")
    return list(dict.fromkeys(notes))


def _notes_of_pass(row: Row, table: Which) -> list[str] | None:
    """Of a table that shows one pass alone; None for any other."""
    has_task = all(one.task is not None for one in row.training)
    own: dict[Which, str | None] = {
        "batches": row.max_batch_note,
        "checkpoints": row.checkpoint_note,
        "learning": None if has_task else NO_TASK,
    }
    if table not in own:
        return None
    note = own[table]
    return [] if note is None else [note]


def _notes_of_setting(row: Row) -> Iterator[str]:
    """What a change by a setting does not say by itself."""
    for setting in row.settings:
        was_done = setting.name != "compile" or "not_compiled" not in row.flags
        if setting.name in LOOSE and not setting.is_option and was_done:
            yield LOOSE[setting.name]
    yield from _compiled(row)
    yield from notes_of_samples(row)
    if row.same_buckets_as is not None:
        yield f"the same layout of buckets as {row.same_buckets_as}: what differs is noise"
    if row.samples_per_s is not None and row.setting.reason is not None:
        yield f"no change given: {row.setting.reason}"
    yield from _unclear("against plain", row.setting)
    yield from _unclear("against the rung below", row.rung)
    if row.rung_below and row.samples_per_s is not None and row.rung.reason is not None:
        yield f"not compared with the rung below: {row.rung.reason}"
    if row.parity_note is not None:
        yield f"parity {parity_of(row)}: {row.parity_note}"


def _compiled(row: Row) -> list[str]:
    """What torch.compile took, and what it made of the model."""
    one = row.compilation
    if one is None or one.graphs == 0:
        return []
    longest, shortest = max(row.compile_s), min(row.compile_s)
    took = f"compiled in {longest:.1f} s a launch, not part of the figure"
    if shortest < FROM_CACHE * longest:
        took = (
            f"compiled in {longest:.1f} s, not part of the figure, and in {shortest:.1f} s with"
            " what an earlier launch had compiled"
        )
    cut = f", cut into {one.parts} at DDP's buckets" if one.parts > one.graphs else ""
    what = f"{plural(one.graphs, 'graph')} of {plural(one.operations, 'call')}{cut}"
    breaks = plural(one.breaks, "graph break") if one.breaks else "no graph break"
    left = f", {plural(one.uncompiled, 'function')} left uncompiled" if one.uncompiled else ""
    why = f" (most often: {next(iter(one.reasons))})" if one.reasons else ""
    return [f"{took}: {what}, {breaks}{left}{why}"]


def _far_off(row: Row) -> list[str]:
    """Launches that count as nearer to the others than they were.

    Where a run's drift is taken out no launch counts as it was, and the page says that.
    """
    pairs = [(one.figure, counts) for one, counts in zip(row.launches, row.figures, strict=False)]
    moved = [pair for pair in pairs if not math.isclose(*pair, rel_tol=1e-6)]
    if not moved or len(moved) > len(pairs) / 2:
        return []
    told = [
        f"{_rate(was * row.units_per_sample)} counts as {_rate(counts * row.units_per_sample)}"
        for was, counts in moved
    ]
    which = "a launch stands" if len(moved) == 1 else "launches stand"
    return [f"{which} far off: {', '.join(told)} {row.unit}s/s"]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _unclear(what: str, compared: Comparison) -> list[str]:
    """Why a change whose interval leaves out 0 is none that is clear."""
    if compared.why_unclear is None:
        return []
    return [f"{what}: the interval leaves out 0, but {compared.why_unclear}"]


def _gain(row: Row) -> list[str]:
    """What the speedup does not show by itself."""
    if row.speedup.verdict == "no clear difference":
        one = row.case.world_size == 1
        return [
            "no clear difference from one device without a wrapper: noise may explain it"
            if one
            else "no clear gain over one device: noise may explain it"
        ]
    return ["slower than one device"] if _is_slowdown(row) else []


def _is_slowdown(row: Row) -> bool:
    return row.speedup.verdict == "slower" and row.case.world_size > 1


def baseline_notes(rows: Sequence[Row]) -> list[list[str]]:
    """What each row's speedup is over, where not all of a table's are over the same row."""
    by_id = {row.case.id: row for row in rows}
    known = [by_id.get(row.speedup.against or "") for row in rows]
    bases = {row.case.id for row in rows if row.speedup.is_baseline}
    bases |= {base.case.id for base in known if base is not None}
    name = variants(rows)
    if len(bases) < 2:
        return [[] for _ in rows]
    return [
        [] if base is None else [f"speedup: over {name(base.case)} on one device"] for base in known
    ]


def noise_sentence(rows: Sequence[Row]) -> str:
    """What the pairs of equal cases showed, and what follows for all differences of a table."""
    pairs = [_pair(row, variants(rows)) for row in rows if row.twin is not None]
    if not pairs:
        return "Noise floor: unknown, since no case was measured twice."
    floors = {row.case.world_size: noise_floor(rows, row.case.world_size) for row in rows}
    known = {size: floor for size, floor in floors.items() if floor is not None}
    if not known:
        return f"Noise floor: unknown. {'; '.join(pairs)}."
    texts = {size: floor_words(floor) for size, floor in known.items()}
    if len(set(texts.values())) == 1:
        floor = next(iter(texts.values()))
    else:
        floor = ", ".join(f"{text} on {plural(size, 'device')}" for size, text in texts.items())
    ending = "A smaller difference is no clear difference."
    if max(known.values()) > HOPELESS:
        ending = "That is too much to compare strategies: measure on a quieter machine, or longer."
    return f"Noise floor: {floor}. {'; '.join(pairs)}. {ending}"


def floor_words(floor: float) -> str:
    """A noise floor in percent, or, where it is large, as a factor."""
    return f"{floor:.1%}" if floor < IN_PERCENT else f"a factor of {1 + floor:.2f}"


def _pair(row: Row, name: Callable[[Case], str]) -> str:
    """Such as: ddp on 2 devices, measured twice, differed by +1.1% (95 %: -2.4% to +4.6%)."""
    assert row.twin is not None
    ratio = row.twin.comparison.ratio
    what = f"{name(row.case)} on {plural(row.case.world_size, 'device')}, measured twice"
    if ratio is None:
        return f"{what}: no second figure, {row.twin.comparison.reason}"
    if ratio.low is None or ratio.high is None:
        return f"{what}, differed by {ratio.value - 1:+.1%} (1 launch, no interval)"
    ends = f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"
    return f"{what}, differed by {ratio.value - 1:+.1%} (95 %: {ends})"


def parity_of(row: Row) -> str:
    """The verdict on a row's proof, in words; empty where there was none to be."""
    if row.parity is None:
        return "" if row.parity_note is None else "not proved"
    return row.parity.verdict.replace("_", " ")


def deviation_of(row: Row) -> str:
    """How far a proof has found a lossy strategy from one device; empty for any other.

    Such as: off by: gradient 0.17%, losses 0.0041%, parameters 1.2% of their way.
    """
    parity = row.parity
    if parity is None or parity.verdict != "lossy_by_design":
        return ""
    found = {
        "gradient {}": parity.gradient_deviation,
        "losses {}": parity.loss_deviation,
        "parameters {} of their way": parity.parameter_deviation,
    }
    texts = [text.format(_share(size)) for text, size in found.items() if size is not None]
    return f"off by: {', '.join(texts)}" if texts else ""


def _share(size: float) -> str:
    """Of a relative error, two digits of it.

    >>> _share(0.0017), _share(0.25), _share(0.0)
    ('0.17%', '25%', '0%')
    """
    if size >= BEYOND_SHARES:
        return f"{size:.0e} times its size"
    places = max(0, 1 - math.floor(math.log10(100 * size))) if size > 0 else 0
    return f"{100 * size:.{min(places, MOST_PLACES)}f}%"


def variants(rows: Sequence[Row]) -> Callable[[Case], str]:
    """Names each case of a table: the strategy with whatever else varies between the rows."""
    cases = [row.case for row in rows]
    batch = "per_device_batch" if cases and cases[0].scaling == "weak" else "global_batch"
    varying = [
        name
        for name in (*NAMED_BY_VALUE, *NAMED, batch, "seed")
        if len({str(getattr(case, name)) for case in cases} - {"None"}) > 1
    ]

    not_compiled = {row.case.id for row in rows if "not_compiled" in row.flags}
    spread = _sizes_on_unlike_hosts(cases)

    def name(case: Case) -> str:
        texts = [_value(case, name, not_compiled) for name in varying]
        texts += [plural(case.nodes, "host")] if case.world_size in spread else []
        return ", ".join([case.label, *filter(None, texts)])

    return name


def _sizes_on_unlike_hosts(cases: Sequence[Case]) -> set[int]:
    """Numbers of devices that some rows have on more hosts than others."""
    found: dict[int, set[int]] = {}
    for case in cases:
        found.setdefault(case.world_size, set()).add(case.nodes)
    return {size for size, nodes in found.items() if len(nodes) > 1}


def place_of(rows: Sequence[Row]) -> Callable[[Case], str]:
    """Names the hosts and the link of a case as far as others of as many devices have others."""
    cases = [row.case for row in rows]
    spread = _sizes_on_unlike_hosts(cases)
    varying = [n for n in ("link", "latency_ms") if len({getattr(c, n) for c in cases}) > 1]

    def name(case: Case) -> str:
        texts = [_value(case, name, set()) for name in varying]
        texts += [plural(case.nodes, "host")] if case.world_size in spread else []
        return ", ".join(filter(None, texts))

    return name


def _value(case: Case, name: str, not_compiled: Set[str]) -> str:
    """A field in words; empty where it has no value, or a plain one that goes without saying."""
    value = getattr(case, name)
    if value is None or (name in NAMED and value == PLAIN_VALUES[name]):
        return ""
    if name == "env":
        return " ".join(f"{variable}={text}" for variable, text in value.items())
    if name in NAMED_BY_VALUE:
        return str(value)
    if name == "compile" and case.id in not_compiled:
        value = f"{value} {NOT_DONE}"
    return name if value is True else f"{SHORT_NAMES.get(name, name)} {value}"
