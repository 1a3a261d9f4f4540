"""The page of predictions: a table a strategy, charts, and what they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from tabulate import tabulate

from bench.errors import OutputError
from bench.records.scaling import Predicted
from bench.records.store import write_atomically
from bench.report.cells import DASH
from bench.report.drawing import Chart
from bench.report.markdown import parts_of
from bench.report.markup import escape
from bench.report.scaling_charts import draw, shown_step
from bench.report.step_trace import TRACE, beside_measured, measured_step, trace_of

REPORT, CHARTS = "report.md", "charts"
HEADS = (
    "devices",
    "hosts",
    "step, ms",
    "per second",
    "speedup",
    "efficiency",
    "communication, ms",
    "exposed, ms",
    "no overlap, ms",
    "full overlap, ms",
)
HOW_TO_READ = """\
**Nothing here was measured**: every figure is predicted. *Speedup* is throughput over that of one
device without a wrapper, *efficiency* is speedup over devices; where there is an interval, eight in
ten published figures lie within it of what is predicted of them. *Exposed* is communication while
nothing is computed. *No overlap* and *full overlap* are what models of one line say: computation,
then all gradients at once; and forward + max(backward, communication) + optimizer.
"""


def write_scaling(
    rows: Sequence[Predicted],
    folder: Path,
    *,
    title: str,
    basis: str,
    measured_trace: Path | None = None,
) -> Path:
    """Write the page, its charts, and a trace of one step; returns the page's path.

    Args:
        rows: of one workload, at least one.
        folder: is there.
        title: of the page.
        basis: what the predictions rest on, a sentence.
        measured_trace: of one rank, that the predicted step is to stand beside.

    Raises:
        RecordsError: the measured trace is none.
        OutputError: the folder cannot be written.
    """
    shown = shown_step(rows)
    trace = trace_of(shown) if measured_trace is None else beside_measured(shown, measured_trace)
    measured = [] if measured_trace is None else measured_step(measured_trace)
    try:
        charts = draw(rows, folder / CHARTS, measured)
        write_atomically(folder / TRACE, msgspec.json.encode(trace))
        path = folder / REPORT
        write_atomically(path, page(rows, title=title, basis=basis, charts=charts).encode())
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from error
    return path


def page(rows: Sequence[Predicted], *, title: str, basis: str, charts: Sequence[Chart] = ()) -> str:
    """The whole page as GitHub renders it."""
    parts = [f"# {escape(title)}", escape(basis), HOW_TO_READ]
    for label in dict.fromkeys(one.case.label for one in rows):
        some = [one for one in rows if one.case.label == label]
        parts += [f"## {escape(label)}", table(some)]
    parts.append(parts_of(charts, CHARTS))
    parts.append(f"[{TRACE}]({TRACE}) has the step of the last picture for Perfetto.")
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def table(rows: Iterable[Predicted], style: str = "github") -> str:
    """One strategy, a line a number of devices."""
    body = [_line(one) for one in sorted(rows, key=lambda one: one.case.world_size)]
    return tabulate(
        body, HEADS, tablefmt=style, disable_numparse=True, colalign=["right"] * len(HEADS)
    )


def plain(rows: Sequence[Predicted]) -> str:
    """All tables for a terminal."""
    labels = dict.fromkeys(one.case.label for one in rows)
    parts = []
    for label in labels:
        some = [one for one in rows if one.case.label == label]
        parts.append(f"{label}, predicted:\n{table(some, 'simple')}")
    return "\n\n".join(parts)


def _line(one: Predicted) -> list[str]:
    return [
        str(one.case.world_size),
        str(one.hosts),
        _ms(one.step_s),
        f"{one.samples_per_s:,.4g}",
        _between(one.speedup, one),
        f"{100 * one.efficiency:.1f}%",
        _ms(one.communicated_s),
        _ms(one.exposed_s),
        _ms(one.no_overlap_s),
        _ms(one.full_overlap_s),
    ]


def _between(value: float, one: Predicted) -> str:
    """With its interval, where an error is known; one device has none."""
    if one.error_low is None or one.error_high is None or one.case.world_size == 1:
        return f"{value:.3g}"
    low, high = value * (1 - one.error_low), value * (1 + one.error_high)
    return f"{value:.3g} ({low:.3g}-{high:.3g})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}" if seconds > 0 else DASH
