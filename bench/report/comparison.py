"""Two runs beside each other, as markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tabulate import tabulate

from bench.analyze.compare import Compared, Judgement, Pair, counts
from bench.analyze.rows import Row
from bench.errors import one_line, plural
from bench.records.environment import Difference
from bench.report import cells
from bench.report.comparison_data import kind_of_memory
from bench.report.markup import code, escape
from bench.report.notes import variants
from bench.report.tables import Table, tables_of

MOST_OF_A_FACT = 80
"""Characters of one side of a difference between environments."""
MOVED = 0.01
"""Change of all cases together that is worth a word."""
MOST_WORDS = 50
"""Lines of what the tables do not show."""
MOST_CLEAR = 100
"""Rows of the table of clear changes, the slowest first."""
MOST_CHARACTERS = 60_000
"""Of a page: GitHub takes 65,536 in a comment."""
CLEAR = "Clear changes"
MOST_NAMED = 8
"""Cases that a list names one by one."""

TO_READ = """\
Throughput counts the samples of all devices together over the time of the slowest process; `±` is
half of a 95 % interval over launches, and brackets are its ends. A change is *slower* or *faster*
where it is clear among all of these comparisons, and larger than what equal cases, measured twice
in either run, differed by (the noise floor). *Could have seen* is the least slowdown that would be
called clear in four of five such comparisons. An interval speaks of the launches of these two runs:
another day, temperature or neighbour moves whole runs, which no number of launches shows. Measure
both again before a small change is believed."""


def markdown(found: Compared, judged: Judgement | None = None) -> str:
    """The comparison as GitHub renders it: what changed first, all pairs folded away.

    Args:
        found: two runs.
        judged: where a limit was asked for.
    """
    tables = tables_of([pair.new for pair in found.pairs])
    clear = [pair for pair in found.pairs if pair.change.verdict in {"slower", "faster"}]
    clear.sort(key=lambda pair: pair.change.ratio.value if pair.change.ratio else 1.0)
    words = list(_words(found))
    if len(words) > MOST_WORDS:
        words = [*words[:MOST_WORDS], f"and {len(words) - MOST_WORDS} more such lines"]
    head = [f"## {escape(_headline(found))}", *_unlike(found), *_judgement(judged)]
    head += _rows(CLEAR, clear[:MOST_CLEAR], tables)
    if len(clear) > MOST_CLEAR:
        head.append(f"And {len(clear) - MOST_CLEAR} more, less slow: `--json` has them.")
    tail = ["\n".join(f"- {escape(one)}" for one in words), TO_READ]
    tail.append("\n".join(f"- {escape(one)}" for one in _origins(found)))
    whole = "\n\n".join(
        part
        for table in tables
        for part in _rows(f"{table.title}: {table.rule}", _of(table, found.pairs), tables)
    )
    folded = f"<details><summary>All pairs</summary>\n\n{whole}\n\n</details>"
    if len(whole) + sum(map(len, [*head, *tail])) > MOST_CHARACTERS:
        folded = "All pairs are more than a comment takes: `--json` has them."
    return "\n\n".join(part for part in [*head, folded, *tail] if part) + "\n"


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
    is_clear = pair.change.verdict in {"slower", "faster"}
    return f"{pair.change.verdict}: {text}" if is_clear else text


def _memory(pair: Pair) -> str:
    kind = kind_of_memory(pair)
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
