"""The page of collectives alone: tables, NCCL against gloo, and the bus bandwidth over the size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.analyze.checks import FLAGS as OF_CASES
from bench.analyze.collectives import BIMODAL, FASTER, ROWS_BIMODAL, flags_of
from bench.errors import RecordsError
from bench.records.collectives import Collective, Limit, iterate_collectives
from bench.records.record import RunInfo
from bench.records.store import RUN, read_run
from bench.report.bandwidth import GIGA, Line, draw, grouped, line_of, size_of
from bench.report.cells import DASH
from bench.report.document import Document, Fold, Grid, Heading, Items, Part, Prose, Text, grid_of
from bench.report.drawing import Chart
from bench.report.network import network_section
from bench.report.page import CHARTS, drawn, write_pages
from bench.report.pairs import pairs_section
from bench.report.published import beside_collectives
from bench.report.summary import machine_lines

FOR_COMPARISON, LOOPBACK = "For comparison", "loopback"
PUBLISHED = (
    "Published, on one A100 machine, for 100 MB: 1.2 ms over NCCL against 87 ms over gloo (an "
    "article on going from DP to DDP; it names neither the ranks nor where the tensors were)."
)
HOW_TO_READ = """\
A call is timed alone, all ranks having started it together, and again in rows of calls back to
back. *Time* is that of one call alone on the slowest rank: the median of all calls, and between
which two times eight in ten of them lay. *algbw* is the size over that time. *busbw* is algbw times
2(n-1)/n for an all-reduce, (n-1)/n for an all-gather, a reduce-scatter and an all-to-all, and 1 for
the others, so that it can be compared with the rate of a link (NVIDIA's nccl-tests,
PERFORMANCE.md): one rank has none. *Time in a row* is that of a call among others that follow each
other at once, and *back to back* the busbw of these. They are another regime than a call alone: no
call waits for all ranks to start, and ranks may run ahead of each other or get into each other's
way. Memory copy and loopback stand there for comparison: each is what it says, and an operation
that moves bytes in another way may pass it. 1 GB is 10^9 bytes; sizes are the whole output of an
all-gather, the whole input of a reduce-scatter, and all that a rank sends in an all-to-all. Send
and receive go around in a ring, all ranks at once. Results are checked before and after with values
that differ from rank to rank and are exact in each type. What gloo reaches is effective: its
threads share the cores with what they serve.
"""


def load_collectives(folder: Path) -> tuple[RunInfo, list[Collective], list[Limit]]:
    """A folder of ``bench comm``.

    Raises:
        RecordsError: it is none.
    """
    info = read_run(folder)
    try:
        limits = msgspec.convert(info.suite.get("limits", []), list[Limit])
    except msgspec.ValidationError as error:
        raise RecordsError(f"{folder / RUN}: suite.limits: {error}") from error
    return info, list(iterate_collectives(folder)), limits


def write_collectives(folder: Path, *, published: bool = False) -> Path:
    """Make ``report.md``, ``report.html`` and the charts from the folder's rows.

    Returns:
        The path of the former.

    Args:
        folder: of results.
        published: set the figures that others have published beside ours.

    Raises:
        RecordsError: the folder holds no rows.
        OutputError: the report cannot be written.
    """
    info, rows, limits = load_collectives(folder)
    charts, problem = drawn(lambda: draw(rows, limits, folder / CHARTS), folder / CHARTS)
    return write_pages(document(info, rows, limits, charts, problem, published=published), folder)


def document(
    info: RunInfo,
    rows: Sequence[Collective],
    limits: Sequence[Limit],
    charts: Sequence[Chart] = (),
    problem: str = "",
    *,
    published: bool = False,
) -> Document:
    """The whole page."""
    parts: list[Part] = [Items([*found(rows, limits)]), Text(problem), *charts]
    parts += pairs_section(info.suite.get("pairs", []))
    parts += [Heading(2, "NCCL against gloo"), *_against(rows)]
    for op, of_op in grouped(rows, lambda row: row.op):
        parts.append(Heading(2, op))
        for number, (dtype, some) in enumerate(grouped(of_op, lambda row: row.dtype)):
            shown = table(some, f"{op}, {dtype}")
            if shown is not None:
                parts += [Fold(dtype, [shown])] if number else [Text(f"{dtype}:"), shown]
        parts.append(Items(reasons(of_op, limits)))
    parts += beside_collectives(rows) if published else []
    parts += [Heading(2, "How to read this"), Prose(HOW_TO_READ)]
    parts += [Heading(2, "Where it was measured"), Items(machine_lines(info))]
    parts += network_section(info.environment)
    return Document(title="Collectives alone", parts=parts)


def found(rows: Sequence[Collective], limits: Sequence[Limit]) -> Iterator[str]:
    """What a reader wants to know first, a sentence each."""
    for limit in limits:
        yield (
            f"{FOR_COMPARISON}, measured in this run: {limit.what} {_rate(limit.bytes_per_s)} GB/s"
            f"{_at_once(limit)}."
        )
    for (op, line), some in grouped(rows, lambda row: (row.op, line_of(row))):
        good = [row for row in some if row.status == "ok" and row.back_to_back_busbw_bytes_per_s]
        if not good:
            continue
        # All of one type, the first that was measured: the best of several would flatter.
        good = [row for row in good if row.dtype == good[0].dtype]
        best = max(good, key=lambda row: row.back_to_back_busbw_bytes_per_s or 0.0)
        least = min(good, key=lambda row: row.bytes)
        assert least.median_s is not None, "it succeeded"
        yield (
            f"{op} of {best.dtype} over {line.backend} on {line.world_size} ranks{_on(line)}: up "
            f"to {_rate(best.back_to_back_busbw_bytes_per_s)} GB/s on the bus back to back (busbw, "
            f"{size_of(best.bytes)}); a call of {size_of(least.bytes)} takes "
            f"{duration_of(least.median_s)} alone{_span(least)}{_in_a_row(least)}."
        )


def _at_once(limit: Limit) -> str:
    """What went on at the same time, which a collective need not do."""
    if limit.ranks == 1:
        return ""
    if limit.what == LOOPBACK:
        return f", {limit.ranks} ranks sending to each other at the same time"
    return f", {limit.ranks} ranks at the same time"


def _span(row: Collective) -> str:
    """Between which times eight in ten calls lay, and whether around two."""
    if row.low_s is None or row.high_s is None:
        return ""
    levels = ", around two levels" if BIMODAL in flags_of(row, ()) else ""
    return f" (eight in ten from {duration_of(row.low_s)} to {duration_of(row.high_s)}{levels})"


def _in_a_row(row: Collective) -> str:
    if row.back_to_back_s is None:
        return ""
    return f", and {duration_of(row.back_to_back_s)} in a row of calls"


def _on(line: Line) -> str:
    if line.nodes == 1:
        return ""
    return f" of {line.nodes} hosts" + (f" with links of {line.link}" if line.link else "")


def _against(rows: Sequence[Collective]) -> list[Part]:
    """Rows that differ in their backend alone, side by side; or why there are none."""
    good = {row.key: row for row in rows if row.status == "ok"}
    body = []
    for key, gloo in good.items():
        op, backend, device, dtype, world_size = key[:5]
        nccl = good.get((op, "nccl", *key[2:]))
        if backend == "gloo" and nccl is not None and gloo.median_s and nccl.median_s:
            ratio = gloo.median_s / nccl.median_s
            times = [duration_of(nccl.median_s), duration_of(gloo.median_s)]
            body.append(
                [op, device, dtype, world_size, size_of(gloo.bytes), *times, f"{ratio:.3g}"]
            )
    if body:
        heads = ["operation", "tensors on", "type", "ranks", "size", "NCCL", "gloo", "gloo / NCCL"]
        shown = grid_of("NCCL against gloo", heads, body, words=3)
        return [shown, Text(PUBLISHED)]
    why = next((row.reason for row in rows if row.backend == "nccl" and row.reason), None)
    return [Text(f"NCCL: n/a ({why or 'it was not asked for'})."), Text(PUBLISHED)]


def table(rows: Sequence[Collective], caption: str) -> Grid | None:
    """One operation in one type: a line a size, five columns a backend and number of ranks."""
    good = [row for row in rows if row.status == "ok"]
    lines = list(dict.fromkeys(map(line_of, good)))
    if not lines:
        return None
    # Sizes are rounded to whole elements for each rank: those of one place go together.
    places: dict[int, dict[Line, Collective]] = {}
    for line in lines:
        own = sorted((row for row in good if line_of(row) == line), key=lambda row: row.bytes)
        for row in own:
            places.setdefault(_nearest(row.bytes, places, row.world_size), {})[line] = row
    body = [
        [size_of(size), *itertools.chain(*(_cells(there.get(line)) for line in lines))]
        for size, there in sorted(places.items())
    ]
    heads = [
        "size",
        *itertools.chain(
            *(
                (f"{line}: time", "algbw, GB/s", "busbw, GB/s", "time in a row", "back to back")
                for line in lines
            )
        ),
    ]
    return grid_of(caption, heads, body, words=1)


def _nearest(size: int, places: Iterable[int], ranks: int) -> int:
    """The line of a table that a size belongs to."""
    return next((one for one in places if abs(one - size) < 4 * max(ranks, 8)), size)


def _cells(row: Collective | None) -> list[str]:
    if row is None or row.median_s is None or row.low_s is None or row.high_s is None:
        return [DASH] * 5
    spread = f"{duration_of(row.median_s)} ({duration_of(row.low_s)}-{duration_of(row.high_s)})"
    in_a_row = DASH if row.back_to_back_s is None else duration_of(row.back_to_back_s)
    alone = [_rate(row.algbw_bytes_per_s), _rate(row.busbw_bytes_per_s)]
    return [spread, *alone, in_a_row, _rate(row.back_to_back_busbw_bytes_per_s)]


def reasons(rows: Sequence[Collective], limits: Sequence[Limit] = ()) -> list[str]:
    """Why rows of one operation have no figure, and what must be said of others, each once."""
    said: dict[str, list[Collective]] = {}
    for row in rows:
        if row.status != "ok":
            said.setdefault(f"{row.status.replace('_', ' ')}: {row.reason}", []).append(row)
            continue  # what is said of figures is not said of none
        for flag in [*row.flags, *flags_of(row, limits)]:
            said.setdefault(FLAGS.get(flag) or OF_CASES.get(flag, flag), []).append(row)
    return [f"{_which(some)}: {why}" for why, some in said.items()]


FLAGS = {
    "oversubscribed": "more ranks than cores, so that they wait for each other's turn",
    BIMODAL: "calls alone stand around two levels: their median is that of one of them, or of"
    " neither",
    ROWS_BIMODAL: "rows of calls stand around two levels: what is back to back is that of one of"
    " them, or of neither",
    FASTER: "more than the loopback beside them: there both ranks send at the same time with plain"
    " sockets, which not every operation does; it is no limit of these",
    "emulated_network": "the hosts are one machine, whose kernel carries their talk on the cores"
    " of the ranks; a token bucket sets the links' speed",
}


def _which(rows: Sequence[Collective]) -> str:
    lines = ", ".join(dict.fromkeys(str(line_of(row)) for row in rows))
    sizes = sorted({row.bytes for row in rows})
    if len(sizes) == 1:
        return f"{lines}, {size_of(sizes[0])}"
    return f"{lines}, {size_of(sizes[0])} to {size_of(sizes[-1])}"


def duration_of(seconds: float) -> str:
    """Seconds for people.

    >>> duration_of(0.0000123), duration_of(0.0123), duration_of(1.23)
    ('12.3 us', '12.3 ms', '1.23 s')
    """
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-6:.3g} us"


def _rate(rate: float | None) -> str:
    return DASH if rate is None else f"{rate / GIGA:.3g}"
