"""What a run has found, in plain sentences that the page begins with; each follows from rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from bench.analyze.ranking import Ranking, is_lossy, rankings
from bench.analyze.recommend import SAVES
from bench.analyze.rows import Comparison, Row
from bench.analyze.verdicts import noise_floor
from bench.errors import plural
from bench.report import cells
from bench.report.loading import loading
from bench.report.naming import Names, listed
from bench.report.notes import floor_words
from bench.report.remarks import communication, doubts, missing
from bench.report.settings import PLAIN, SettingsTable
from bench.report.tables import Table

Kind = Literal["fastest", "memory", "settings", "loading", "communication", "missing", "doubt"]

SLOWER = " Clearly slower: "
PLACES = {
    "nodes": "{}",
    "link": "links of {}",
    "latency_ms": "latency of {} ms",
    "optimizer": "{}",
    "batches_from": "data {}",
    "seed": "seed {}",
    "cores_per_device": "{} a device",
    "precision": "{}",
    "compile": "compile {}",
    "accumulation_steps": "{}",
    "global_batch": "global batch {}",
}
"""What of a case the rankings of a table may differ by, in words."""
COUNTED = {"nodes": "host", "cores_per_device": "core", "accumulation_steps": "micro-step"}
PLAINEST = {"data": "device", "precision": "fp32", "compile": "none", "accumulation_steps": 1}
"""What tables of settings compare with."""
"""Those that are a number of something."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence, or a few that belong together."""

    about: str
    """The model, as its table is called."""
    kind: Kind
    text: str


def findings(tables: Sequence[Table]) -> list[Finding]:
    """What the rows of a report say, model by model."""
    ranked = rankings([row for table in tables for row in table.rows])
    return [
        Finding(about=table.title, kind=kind, text=text)
        for table in tables
        for kind, text in _of_table(table, _of(table, ranked))
    ]


def _of(table: Table, ranked: Sequence[Ranking]) -> list[Ranking]:
    """The rankings of a table, in the order of its rows."""
    places = {id(row): place for place, row in enumerate(table.rows)}
    own = [found for found in ranked if id(found.best) in places]
    return sorted(own, key=lambda found: min(places[id(row)] for row in found.rows))


def headline(tables: Sequence[Table]) -> str:
    """The first of them in short, for a list of runs."""
    first = next(iter(findings(tables)), None)
    if first is None:
        return "nothing was planned"
    return f"{first.about}: {first.text.partition(SLOWER)[0]}"


def _of_table(table: Table, ranked: Sequence[Ranking]) -> Iterator[tuple[Kind, str]]:
    names = Names(table.rows)
    ranked = [found for found in ranked if not _is_setting(found, ranked)]
    has_settings = any(one.rows for one in table.settings)
    for found in ranked:
        where, own = _where(found, ranked), Names(found.rows)
        if not (has_settings and _is_alone(found)):
            yield "fastest", fastest(found, own, where)
        if found.with_fewer is not None:
            yield "fastest", fewer(found.best, found.with_fewer, names)
        for text in (lossy(found, own), reference(found, own)):
            if text:
                yield "fastest", text
        place = f" {where[0].lower()}{where[1:]}" if len(ranked) > 1 else ""
        yield from (("memory", text) for text in _memory(table, found, own, place))
    for one in table.settings:
        yield from (("settings", text) for text in settings(one, table.rows))
    yield from (("loading", text) for text in loading(table.rows, names))
    yield from (("communication", text) for text in communication(table.rows, names))
    yield from (("missing", text) for text in missing(table.rows, names))
    yield from (("doubt", text) for text in doubts(table.rows, names))


def _is_setting(found: Ranking, ranked: Sequence[Ranking]) -> bool:
    """Whether it is a row alone with a setting that others lack: settings say what it brings."""
    own = _plainness(found)
    return _is_alone(found) and any(_plainness(one) > own for one in ranked)


def _is_alone(found: Ranking) -> bool:
    return not found.level and not found.behind and not found.ahead


def _plainness(found: Ranking) -> int:
    """In how many of its settings it is as plain as can be."""
    return sum(getattr(found.best.case, name) == value for name, value in PLAINEST.items())


def _where(found: Ranking, ranked: Sequence[Ranking]) -> str:
    """Devices, and what tells the place or problem from those of the table's other rankings."""
    case, others = found.best.case, [one.best.case for one in ranked]
    texts = [f"On {plural(case.world_size, 'device')}"]
    for name, words in PLACES.items():
        if name == "global_batch" and case.scaling != "strong":
            continue  # it follows from settings
        value = getattr(case, name)
        if len({getattr(other, name) for other in others}) > 1:
            count = plural(value, COUNTED[name]) if name in COUNTED else value
            texts.append(words.format(count))
    return " ".join(texts[:1]) + "".join(f", {text}" for text in texts[1:])


def fastest(found: Ranking, names: Names, where: str) -> str:
    """Such as: On 2 devices ddp is the fastest: 5.6 images/s, 1.10 times one device."""
    best = found.best
    rate = f"{cells.throughput(best)} {best.unit}s/s"
    ratio = best.speedup.ratio
    if ratio is not None and not best.speedup.is_baseline:
        verdict = best.speedup.verdict
        unsure = ", no clear gain" if verdict == "no clear difference" else ""
        unsure = ", in one launch" if ratio.low is None else unsure
        rate += f", {cells.significant(ratio.value)} times one device without a wrapper{unsure}"
    where += "," * ("," in where)
    if reference(found, names):
        where += ", of what is ranked," if not where.endswith(",") else " of what is ranked,"
    slower = f"{SLOWER}{_changes(found, names)}." if found.behind else ""
    if found.level:
        level = f"{names.many(found.level)} cannot be told from it"
        return f"{where} {names(best)} has the highest figure, {rate}; {level}.{slower}"
    if found.behind:
        return f"{where} {names(best)} is the fastest: {rate}.{slower}"
    return f"{where} only {names(best)} could be ranked: {rate}."


def _changes(found: Ranking, names: Names) -> str:
    return listed([f"{names(row)} ({change:+.0%})" for row, change in found.behind])


def fewer(best: Row, other: Row, names: Names) -> str:
    """A row on fewer devices whose figure is as high: such as a wrapper's that does not scale."""
    assert best.samples_per_s is not None, "what was ranked has a figure"
    assert other.samples_per_s is not None, "likewise"
    ratio = best.samples_per_s.value / other.samples_per_s.value
    return (
        f"Fewer devices did as much or more: {names.sized(other)} has {cells.throughput(other)} "
        f"{other.unit}s/s, of which {names.sized(best)} reaches {cells.significant(ratio)} times."
    )


def lossy(found: Ranking, names: Names) -> str:
    """Rows that are clearly faster, and train on other gradients."""
    if not found.ahead:
        return ""
    verb, it = ("is", "it trains") if len(found.ahead) == 1 else ("are", "they train")
    return (
        f"{names.many(found.ahead)} {verb} faster still, but lossy by design: {it} on other "
        "gradients than one device would."
    )


def reference(found: Ranking, names: Names) -> str:
    """Rows that were left out of the ranking since they only stand for an algorithm."""
    others = [
        row
        for row in found.rows
        if "reference_implementation" in row.flags and row.samples_per_s is not None
    ]
    if not others:
        return ""
    rates = [f"{names(row)} ({cells.throughput(row)} {row.unit}s/s)" for row in others]
    return f"Not ranked, since it only carries out the algorithm on a CPU: {listed(rates)}."


def _memory(table: Table, found: Ranking, names: Names, place: str) -> Iterator[str]:
    def peak(row: Row) -> int | None:
        return max(cells.known(row.usual_peaks.get(table.memory, [])), default=None)

    best = found.best
    ranked = [best, *found.level, *(row for row, _ in found.behind)]
    known = {id(row): size for row in ranked if (size := peak(row)) is not None}
    own = known.get(id(best))
    least = min(
        (row for row in ranked if id(row) in known), key=lambda r: known[id(r)], default=best
    )
    assert best.samples_per_s is not None
    if own and known[id(least)] < (1 - SAVES) * own and least.samples_per_s is not None:
        share = least.samples_per_s.value / best.samples_per_s.value
        yield (
            f"Least memory of what is ranked{place}: {names(least)} with "
            f"{_gib(known[id(least)])} GiB a device, "
            f"where {names(best)} needs {_gib(own)}; it reaches {share:.0%} of its rate"
            f"{', no clear difference' if least in found.level else ''}."
        )
    limits = {
        row.max_batch.memory_limit_bytes
        for row in table.rows
        if row.max_batch is not None and row.max_batch.memory_limit_bytes is not None
    }
    for limit in sorted(limits):
        yield from _within(limit, ranked, known, names, place)


def _within(
    limit: int, ranked: Sequence[Row], known: dict[int, int], names: Names, place: str
) -> Iterator[str]:
    """The fastest that a limit of memory allows, as far as peaks are known."""
    fitting = [row for row in ranked if known.get(id(row), limit + 1) <= limit]
    where = f"Within {_gib(limit)} GiB a device{place}{',' * bool(place)}"
    if fitting:
        one = fitting[0]
        rate = f"{cells.throughput(one)} {one.unit}s/s"
        yield f"{where} {names(one)} has the highest figure: {rate}."
    elif known:
        yield f"{where}: nothing that was measured fits."
    found = [
        (row.max_batch.per_device_batch, row)
        for row in ranked
        if row.max_batch is not None and row.max_batch.per_device_batch is not None
    ]
    if found:
        size, row = max(found, key=lambda pair: pair[0])
        yield f"{where} the largest batch fits with {names(row)}: {size:,} samples a device."


def _gib(size: int) -> str:
    return cells.significant(size / cells.GIB)


def settings(table: SettingsTable, noise: Sequence[Row]) -> Iterator[str]:
    """What each setting gained against plain ones, or each rung against the one below."""
    for size in dict.fromkeys(row.case.world_size for row in table.rows):
        rows = [row for row in table.rows if row.case.world_size == size]
        told = [row for row in rows if not _against(row, table).is_baseline]
        faster, slower, alike = (
            [row for row in told if _against(row, table).verdict == verdict]
            for verdict in ("faster", "slower", "no clear difference")
        )
        parts = [
            f"clearly {word}: {listed([_changed(row, table) for row in some], 12)}"
            for word, some in (("faster", faster), ("slower", slower))
            if some
        ]
        if alike:
            floor = noise_floor(noise, size)
            within = "" if floor is None else f" (the noise floor is {floor_words(floor)})"
            parts.append(
                f"no clear difference{within}: {listed([_name(r, table) for r in alike], 12)}"
            )
        rest = [row for row in told if _against(row, table).verdict is None]
        if rest:
            parts.append(f"not compared: {listed([_name(row, table) for row in rest])}")
        if parts:
            where = "" if table.is_ladder else f" on {plural(size, 'device')}"
            rule = "each against the rung below, " if table.is_ladder else ""
            yield f"{table.title}{where}, {rule}{'; '.join(parts)}."
    yield from table.warnings


def _against(row: Row, table: SettingsTable) -> Comparison:
    if not table.is_ladder:
        return row.setting
    return row.rung if row.rung_below else Comparison(is_baseline=True)


def _name(row: Row, table: SettingsTable) -> str:
    return table.names[row.case.id].removeprefix("+ ") or PLAIN


def _changed(row: Row, table: SettingsTable) -> str:
    ratio = _against(row, table).ratio
    assert ratio is not None, "what has a verdict has a ratio"
    by_design = ", lossy by design" if is_lossy(row) else ""
    return f"{_name(row, table)} ({ratio.value - 1:+.1%}{by_design})"
