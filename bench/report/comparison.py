"""Two runs beside each other, as markdown for a pull request and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from tabulate import tabulate

from bench.analyze.compare import Compared, Judgement, Pair, Side, counts
from bench.analyze.rows import Row
from bench.errors import one_line, plural
from bench.records.environment import Difference
from bench.report import cells
from bench.report.markup import code, escape
from bench.report.notes import variants
from bench.report.tables import Table, tables_of

MOST_OF_A_FACT = 80
"""Characters of one side of a difference between environments."""
MOVED = 0.01
"""Change of all cases together that is worth a word."""
CLEAR = "Clear changes"
MOST_NAMED = 8
"""Cases that a list names one by one."""

TO_READ = """\
Throughput counts the samples of all devices together over the time of the slowest process; `±` is
half of a 95 % interval over launches, and brackets are its ends. A change is *slower* or *faster*
where it is clear among all of these comparisons, and larger than what equal cases, measured twice
in either run, differed by (the noise floor). *Could have seen* is the least slowdown that would
have been called clear. An interval speaks of the launches of these two runs: another day,
temperature or neighbour moves whole runs, which no number of launches shows. Measure both again
before a small change is believed."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One pair as plain data; ratios are of throughputs, new over base."""

    id: str
    workload: str
    preset: str
    strategy: str
    world_size: int
    precision: str
    unit: str
    base_per_s: float | None
    new_per_s: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    verdict: str | None
    reason: str | None
    smallest_clear_slowdown: float | None
    base_peak_bytes: int | None
    new_peak_bytes: int | None
    notes: list[str]


def as_data(found: Compared, judged: Judgement | None) -> dict[str, Any]:
    """The comparison for programs."""
    data: dict[str, Any] = {
        "base": _side(found.base),
        "new": _side(found.new),
        "across_machines": bool(found.unlike),
        "differences": found.unlike,
        "pairs": [_line(pair) for pair in found.pairs],
        "only_base": [row.case.id for row in found.only_base],
        "only_new": [row.case.id for row in found.only_new],
        "shift": found.shift,
    }
    if judged is not None:
        data["fail_on_regression"] = {
            "percent": judged.percent,
            "failed": judged.has_failed,
            "regressions": _ids(judged.regressions),
            "lost": _ids(judged.lost),
            "too_noisy_to_see": _ids(judged.blind),
            "not_compared": _ids(judged.unjudged),
        }
    return data


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "run_id": side.info.run_id,
        "suite": str(side.info.suite.get("name", "")),
        "started_at": side.info.started_at,
        "commit": side.info.environment.get("commit"),
    }


def _ids(pairs: Sequence[Pair]) -> list[str]:
    return [pair.new.case.id for pair in pairs]


def _line(pair: Pair) -> Line:
    case, ratio, change = pair.new.case, pair.change.ratio, pair.change
    return Line(
        id=case.id,
        workload=case.workload,
        preset=case.preset,
        strategy=case.label,
        world_size=case.world_size,
        precision=case.precision,
        unit=pair.new.unit,
        base_per_s=_per_s(pair.base),
        new_per_s=_per_s(pair.new),
        ratio=None if ratio is None else ratio.value,
        ratio_low=None if ratio is None else ratio.low,
        ratio_high=None if ratio is None else ratio.high,
        verdict=change.verdict,
        reason=change.reason,
        smallest_clear_slowdown=pair.smallest,
        base_peak_bytes=_peak(pair.base),
        new_peak_bytes=_peak(pair.new),
        notes=pair.notes,
    )


def _per_s(row: Row) -> float | None:
    return None if row.samples_per_s is None else row.samples_per_s.value * row.units_per_sample


def _peak(row: Row) -> int | None:
    peaks = next((cells.known(values) for values in row.peaks.values() if cells.known(values)), [])
    return max(peaks, default=None)


def markdown(found: Compared, judged: Judgement | None = None) -> str:
    """The comparison as GitHub renders it: what changed first, all pairs folded away.

    Args:
        found: two runs.
        judged: where a limit was asked for.
    """
    tables = tables_of([pair.new for pair in found.pairs])
    clear = [pair for pair in found.pairs if pair.change.verdict in {"slower", "faster"}]
    parts = [f"## {escape(_headline(found))}", *_unlike(found), *_judgement(judged)]
    parts += _rows(CLEAR, clear, tables)
    whole = "\n\n".join(
        part
        for table in tables
        for part in _rows(f"{table.title}: {table.rule}", _of(table, found.pairs), tables)
    )
    if whole:
        folded = "<details><summary>All pairs</summary>"
        parts.append(f"{folded}\n\n{whole}\n\n</details>")
    parts += ["\n".join(f"- {escape(one)}" for one in _words(found)), TO_READ]
    parts.append("\n".join(f"- {escape(one)}" for one in _origins(found)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(found: Compared) -> str:
    number = ", ".join(f"{count} {name}" for name, count in counts(found).items())
    return f"{plural(len(found.pairs), 'case')} in both runs: {number or 'none'}"


def _unlike(found: Compared) -> Iterator[str]:
    if found.unlike:
        yield (
            "**The environments differ** (`--across-machines`): a change below is one of all that"
            " differs here, and not of code alone."
        )
        yield "\n".join(f"- {escape(in_words(one))}" for one in found.unlike)


def in_words(one: Difference) -> str:
    """Such as: versions.torch: 2.13.0 -> 2.14.1."""
    return f"{one.key}: {_fact(one.before)} -> {_fact(one.after)}"


def _fact(value: object) -> str:
    return "not recorded" if value is None else one_line(str(value), limit=MOST_OF_A_FACT)


def _judgement(judged: Judgement | None) -> Iterator[str]:
    if judged is None:
        return
    size = f"{judged.percent:g} %"
    if judged.has_failed:
        reasons = []
        if judged.regressions:
            reasons.append(f"{plural(len(judged.regressions), 'case')} clearly slower by {size}")
        if judged.lost:
            reasons.append(f"{plural(len(judged.lost), 'case')} with a figure in BASE alone")
        yield f"**Regression**: {' or more, and '.join(reasons)}" + (
            " or more." if judged.regressions and not judged.lost else "."
        )
    else:
        yield f"No regression of {size} or more was established."
    if judged.blind:
        names = _named([pair.new for pair in judged.blind])
        yield (
            f"**Noise is too large to see {size}** in {plural(len(judged.blind), 'case')}: {names}."
            " More launches, or a quieter machine, would show it."
        )
    if judged.unjudged:
        names = _named([pair.new for pair in judged.unjudged])
        yield f"Nothing can be said of {plural(len(judged.unjudged), 'case')}: {names}."


def _named(rows: Sequence[Row]) -> str:
    texts = [code(row.case.id) for row in rows[:MOST_NAMED]]
    more = len(rows) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "")


def _of(table: Table, pairs: Sequence[Pair]) -> list[Pair]:
    ids = {row.case.id for row in table.rows}
    return [pair for pair in pairs if pair.new.case.id in ids]


def _rows(title: str, pairs: Sequence[Pair], tables: Sequence[Table]) -> Iterator[str]:
    """A heading and a table; nothing without pairs."""
    if not pairs:
        return
    name = _names(tables)
    titles = {row.case.id: table.title for table in tables for row in table.rows}
    several = title == CLEAR
    headings = ["workload"] * several
    headings += ["devices", "strategy", "base", "new", "change", "could have seen", "GiB/device"]
    body = [
        [titles[pair.new.case.id]] * several
        + [
            str(pair.new.case.world_size),
            name[pair.new.case.id],
            _throughput(pair.base),
            _throughput(pair.new),
            _change(pair),
            cells.DASH if pair.smallest is None else f"-{pair.smallest:.1%}",
            _memory(pair),
        ]
        for pair in pairs
    ]
    alignment = ["left"] * several + ["right", "left"] + ["right"] * 5
    yield f"### {escape(title)}"
    yield tabulate(
        [[escape(cell) for cell in line] for line in body],
        headings,
        tablefmt="github",
        disable_numparse=True,
        colalign=alignment,
    )


def _names(tables: Sequence[Table]) -> dict[str, str]:
    """Of each case: the strategy with whatever varies within its table."""
    found: dict[str, str] = {}
    for table in tables:
        name = variants(table.rows)
        found |= {row.case.id: name(row.case) for row in table.rows}
    return found


def _throughput(row: Row) -> str:
    return f"{cells.throughput(row)} {row.unit}s/s" if row.samples_per_s else cells.throughput(row)


def _change(pair: Pair) -> str:
    if pair.change.ratio is None:
        return "not compared"
    text = cells.change(pair.change)
    return f"{pair.change.verdict}: {text}" if "(" in text and pair.change.verdict else text


def _memory(pair: Pair) -> str:
    kind = next(
        (name for name, values in pair.new.peaks.items() if cells.known(values)
         and cells.known(pair.base.peaks.get(name, []))),
        None,
    )  # fmt: skip
    return cells.DASH if kind is None else cells.memory_change(pair.new, pair.base, kind)


def _words(found: Compared) -> Iterator[str]:
    """What the tables do not show."""
    for pair in found.pairs:
        case = pair.new.case
        if pair.change.reason is not None:
            yield f"{case.id}: not compared: {pair.change.reason}"
        yield from (f"{case.id}: {note}" for note in pair.notes)
    for rows, where in ((found.only_base, "base"), (found.only_new, "new")):
        if rows:
            names = ", ".join(row.case.id for row in rows[:MOST_NAMED])
            more = len(rows) - MOST_NAMED
            yield f"{plural(len(rows), 'case')} in {where} only: {names}" + (
                f" and {more} more" if more > 0 else ""
            )
    shift = found.shift
    if shift is not None and not shift.includes(1.0) and abs(shift.value - 1) > MOVED:
        yield (
            f"all cases together changed by {shift.value - 1:+.1%}: what moves them alike may be"
            " the machine on another day, and not what was changed"
        )
    if found.base.info.run_id == found.new.info.run_id:
        yield "both are the same run: nothing follows from this page"


def _origins(found: Compared) -> Iterator[str]:
    for word, side in (("base", found.base), ("new", found.new)):
        info = side.info
        commit = info.environment.get("commit")
        yield (
            f"{word}: {side.name}, suite {info.suite.get('name')}, started {info.started_at}, "
            f"torch {info.versions.get('torch')}"
            + (f", commit {commit}" if commit else "")
            + ("" if info.ended_by == "complete" else "; the run is not complete")
        )
