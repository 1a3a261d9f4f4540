"""What a run has found, in plain sentences that the page begins with; each follows from rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from bench.analyze.ranking import (
    Ranking,
    is_comparable,
    is_lossy,
    ranking,
)
from bench.analyze.rows import Comparison, Row
from bench.analyze.stats import Noise, noise_of
from bench.analyze.verdicts import noise_floor
from bench.errors import plural
from bench.report import cells
from bench.report.loading import loading
from bench.report.naming import Names, listed
from bench.report.remarks import communication, doubts, missing
from bench.report.settings import PLAIN, SettingsTable
from bench.report.tables import Table

Kind = Literal["fastest", "memory", "settings", "loading", "communication", "missing", "doubt"]

SAVES = 0.1
"""Share of the fastest row's memory that another must save to be named for it."""
SLOWER = " Clearly slower: "


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence, or a few that belong together."""

    about: str
    """The model, as its table is called."""
    kind: Kind
    text: str


def findings(tables: Sequence[Table]) -> list[Finding]:
    """What the rows of a report say, model by model."""
    noise = noise_of(row.figures for table in tables for row in table.rows)
    return [
        Finding(about=table.title, kind=kind, text=text)
        for table in tables
        for kind, text in _of_table(table, noise)
    ]


def headline(tables: Sequence[Table]) -> str:
    """The first of them in short, for a list of runs."""
    first = next(iter(findings(tables)), None)
    if first is None:
        return "nothing was planned"
    return f"{first.about}: {first.text.partition(SLOWER)[0]}"


def _of_table(table: Table, noise: Noise) -> Iterator[tuple[Kind, str]]:
    names = Names(table.rows)
    found = _largest(table.rows, noise)
    if found is not None:
        yield "fastest", fastest(found, names)
        for text in (lossy(table.rows, found, names), reference(table.rows, found, names)):
            if text:
                yield "fastest", text
        yield from (("memory", text) for text in _memory(table, found, names))
    for one in table.settings:
        yield from (("settings", text) for text in settings(one, table.rows))
    yield from (("loading", text) for text in loading(table.rows, names))
    yield from (("communication", text) for text in communication(table.rows, names))
    yield from (("missing", text) for text in missing(table.rows, names))
    yield from (("doubt", text) for text in doubts(table.rows, names))


def _largest(rows: Sequence[Row], noise: Noise) -> Ranking | None:
    """The ranking on most devices on which anything can be ranked."""
    exact = [row for row in rows if not is_lossy(row)]
    for size in sorted({row.case.world_size for row in exact}, reverse=True):
        found = ranking([row for row in exact if row.case.world_size == size], noise)
        if found is not None:
            return found
    return None


def fastest(found: Ranking, names: Names) -> str:
    """Such as: On 2 devices ddp is the fastest: 5.6 images/s, 1.10 times one device."""
    best = found.best
    rate = f"{cells.throughput(best)} {best.unit}s/s"
    ratio = best.speedup.ratio
    if ratio is not None and not best.speedup.is_baseline:
        verdict = best.speedup.verdict
        unsure = ", no clear gain" if verdict == "no clear difference" else ""
        rate += f", {cells.significant(ratio.value)} times one device without a wrapper{unsure}"
    where = f"On {plural(best.case.world_size, 'device')}"
    slower = f"{SLOWER}{_changes(found, names)}." if found.behind else ""
    if found.level:
        level = f"{names.many(found.level)} cannot be told from it"
        return f"{where} {names(best)} has the highest figure, {rate}; {level}.{slower}"
    if found.behind:
        return f"{where} {names(best)} is the fastest: {rate}.{slower}"
    return f"{where} only {names(best)} could be ranked: {rate}."


def _changes(found: Ranking, names: Names) -> str:
    return listed([f"{names(row)} ({change:+.0%})" for row, change in found.behind])


def lossy(rows: Sequence[Row], found: Ranking, names: Names) -> str:
    """Rows that are faster since they train on other gradients."""
    best = found.best
    assert best.samples_per_s is not None, "what was ranked has a figure"
    others = [
        row
        for row in rows
        if is_lossy(row)
        and is_comparable(row)
        and row.case.world_size == best.case.world_size
        and row.samples_per_s is not None
        and row.samples_per_s.low is not None
        and row.samples_per_s.low > (best.samples_per_s.high or best.samples_per_s.value)
    ]
    if not others:
        return ""
    verb, it = ("is", "it trains") if len(others) == 1 else ("are", "they train")
    return (
        f"{names.many(others)} {verb} faster still, but lossy by design: {it} on other gradients "
        "than one device would."
    )


def reference(rows: Sequence[Row], found: Ranking, names: Names) -> str:
    """Rows that were left out of the ranking since they only stand for an algorithm."""
    others = [
        row
        for row in rows
        if "reference_implementation" in row.flags
        and row.samples_per_s is not None
        and row.case.world_size == found.best.case.world_size
    ]
    if not others:
        return ""
    rates = [f"{names(row)} ({cells.throughput(row)} {row.unit}s/s)" for row in others]
    return f"Not ranked, since it only carries out the algorithm on a CPU: {listed(rates)}."


def _memory(table: Table, found: Ranking, names: Names) -> Iterator[str]:
    def peak(row: Row) -> int | None:
        return max(cells.known(cells.memory_of(row, table.memory)), default=None)

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
            f"Least memory: {names(least)} with {_gib(known[id(least)])} GiB a device, where "
            f"{names(best)} needs {_gib(own)}; it reaches {share:.0%} of its rate."
        )
    limits = {
        row.max_batch.memory_limit_bytes
        for row in table.rows
        if row.max_batch is not None and row.max_batch.memory_limit_bytes is not None
    }
    for limit in sorted(limits):
        yield from _within(limit, ranked, known, names)


def _within(
    limit: int, ranked: Sequence[Row], known: dict[int, int], names: Names
) -> Iterator[str]:
    """The fastest that a limit of memory allows, as far as peaks are known."""
    fitting = [row for row in ranked if known.get(id(row), limit + 1) <= limit]
    where = f"Within {_gib(limit)} GiB a device"
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
            within = "" if floor is None else f" (the noise floor is {floor:.1%})"
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
