"""Predicted memory as tables and charts, marked as predicted wherever it is shown."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tabulate import tabulate

from bench.errors import OutputError, one_line
from bench.plan.case import Case
from bench.records.prediction import MemoryForecast, PredictedMemory
from bench.records.store import write_atomically
from bench.report.anatomy import CATEGORIES
from bench.report.cells import DASH, GIB
from bench.report.drawing import (
    COLOURS,
    MARKERS,
    OTHERS,
    Chart,
    attempt,
    charts_in,
    new_figure,
)
from bench.report.lettering import add_legend
from bench.report.markdown import parts_of
from bench.report.markup import escape

PAGE, DATA, CHARTS = "memory-prediction.md", "memory-prediction.json", "charts"
NAME_CHARACTERS = 15
"""Of an inch."""
ALWAYS = ("parameters", "master_parameters", "optimizer_state", "buffers")
MOVING = ("unsharded_parameters", "gradients", "buckets", "communication")
HEADS = (
    "strategy",
    "devices",
    "predicted peak, GiB/device",
    "of it parameters and state",
    "gathered, gradients, buckets",
    "activations and the rest",
    "fits",
    "largest batch/device",
)
MOST_BARS = 40


def write_forecast(forecast: MemoryForecast, folder: Path) -> Path:
    """Leave page, charts and data in a folder; returns the page's path.

    Raises:
        OutputError: the folder cannot be written.
    """
    path = folder / PAGE
    try:
        charts = draw(forecast, folder / CHARTS)
        write_atomically(path, page(forecast, charts).encode())
        write_atomically(folder / DATA, msgspec.json.format(msgspec.json.encode(forecast)))
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from error
    return path


def page(forecast: MemoryForecast, charts: Sequence[Chart] = ()) -> str:
    """The whole page as GitHub renders it."""
    parts = ["# Predicted memory", *assumptions(forecast)]
    for case, rows in _groups(forecast.rows):
        parts += [f"## {escape(_title(case))}", table(forecast, rows), *_reasons(rows)]
    parts.append(parts_of(charts, CHARTS))
    return "\n\n".join(parts) + "\n"


def assumptions(forecast: MemoryForecast) -> Iterator[str]:
    """What the figures are, and what they leave out."""
    yield (
        "Predicted, not measured: the largest total of live tensors on the device that holds most, "
        f"in a steady step, from the operators of torch {forecast.torch} on tensors without data."
    )
    allowance = gib(forecast.allowance_bytes)
    if forecast.device_memory_bytes is None:
        yield f"What no tensor shows (an allowance of {allowance} GiB) is in none of the figures."
        return
    yield (
        f"A case fits if its peak and an allowance of {allowance} GiB are within the "
        f"{gib(forecast.device_memory_bytes)} GiB of a device. The allowance is for what the model "
        "cannot know: the driver's context, NCCL, workspaces of libraries, fragments. It is in "
        "none of the peaks."
    )


def table(forecast: MemoryForecast, rows: Sequence[PredictedMemory]) -> str:
    """A line for each case; rows without a prediction are lines too."""
    body = [_line(forecast, row) for row in rows]
    shown = [place for place, _ in enumerate(HEADS) if any(line[place] != DASH for line in body)]
    alignment = ["left" if place == 0 else "right" for place in shown]
    return tabulate(
        [[line[place] for place in shown] for line in body],
        [HEADS[place] for place in shown],
        tablefmt="github",
        disable_numparse=True,
        colalign=alignment,
    )


def _line(forecast: MemoryForecast, row: PredictedMemory) -> list[str]:
    name, devices = escape(row.case.label), str(row.case.world_size)
    if row.peak_bytes is None:
        return [name, devices, "not predicted", DASH, DASH, DASH, DASH, DASH]
    parts = row.by_category
    held = sum(parts.get(one, 0) for one in ALWAYS)
    moving = sum(parts.get(one, 0) for one in MOVING)
    return [
        name,
        devices,
        gib(row.peak_bytes),
        gib(held),
        gib(moving),
        gib(row.peak_bytes - held - moving),
        {None: DASH, True: "yes", False: "no"}[forecast.fits(row)],
        _batch(row),
    ]


def _batch(row: PredictedMemory) -> str:
    found = row.max_batch
    if found is None:
        return DASH
    if found.per_device_batch is None:
        return "none"
    # Between the two nobody looked.
    is_exact = found.too_large == found.per_device_batch + 1
    more = "" if is_exact or found.too_large is None else f" (less than {found.too_large:,})"
    return f"{found.per_device_batch:,}{more}"


def _reasons(rows: Sequence[PredictedMemory]) -> Iterator[str]:
    found = [
        f"- {escape(row.case.label)} on {row.case.world_size}: {escape(row.reason)}"
        for row in rows
        if row.reason is not None
    ]
    if found:
        yield "\n".join(found)


def gib(size: int) -> str:
    """Bytes in GiB, to three digits.

    >>> gib(3 * 2**29), gib(123456)
    ('1.5', '0.000115')
    """
    return f"{size / GIB:.3g}"


def _groups(rows: Sequence[PredictedMemory]) -> Iterator[tuple[Case, list[PredictedMemory]]]:
    """Rows of one model under equal settings."""
    groups: dict[str, list[PredictedMemory]] = {}
    for row in rows:
        groups.setdefault(_title(row.case), []).append(row)
    for members in groups.values():
        yield members[0].case, members


def _title(case: Case) -> str:
    """A model, and all that rows of different strategies share."""
    words = [
        f"{case.workload}, preset {case.preset}",
        f"{case.per_device_batch} samples per device and micro-step",
        case.precision,
        case.optimizer,
        f"for {case.device}",
    ]
    more = {
        f"{case.accumulation_steps} micro-steps": case.accumulation_steps > 1,
        "synchronised after each": case.accumulation_sync == "every",
        "activation checkpointing": case.activation_checkpointing,
        f"{case.optimizer_kernels} kernels": case.optimizer_kernels != "auto",
    }
    return ", ".join([*words, *(word for word, applies in more.items() if applies)])


def draw(forecast: MemoryForecast, folder: Path) -> list[Chart]:
    """What each peak is made of, and how it goes with the number of devices."""
    try:
        with charts_in(folder, ["predicted-memory-*"]) as charts:
            for number, (case, rows) in enumerate(_groups(forecast.rows), start=1):
                known = [row for row in rows if row.peak_bytes is not None]
                if not known:
                    continue
                title = f"Predicted memory: {_title(case)}"
                stem = f"predicted-memory-{number}"
                bars = partial(_bars, forecast, known[:MOST_BARS])
                drawn = [attempt(bars, folder / f"{stem}-parts", title)]
                if len({row.case.world_size for row in known}) > 1:
                    lines = partial(_lines, forecast, known)
                    drawn.append(attempt(lines, folder / f"{stem}-over", f"{title}, over devices"))
                charts.extend(chart for chart in drawn if chart is not None)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a plotting library's faults are many
        warnings.warn(f"the page has no charts: {error}", stacklevel=2)
        return []
    return charts


def _bars(forecast: MemoryForecast, rows: Sequence[PredictedMemory]) -> Any:
    names = [f"{one_line(row.case.label, limit=100)} x{row.case.world_size}" for row in rows]
    longest = max(map(len, names))
    figure, axes = new_figure(5.4 + longest / NAME_CHARACTERS, 1.2 + 0.3 * len(rows))
    left = [0.0] * len(rows)
    present = {name for row in rows for name, size in row.by_category.items() if size}
    for name in [*CATEGORIES, *sorted(present - CATEGORIES.keys())]:
        if name not in present:
            continue
        widths = [row.by_category.get(name, 0) / GIB for row in rows]
        axes.barh(
            names, widths, left=left, color=CATEGORIES.get(name, "#000000"),
            label=name.replace("_", " "), height=0.7,
        )  # fmt: skip
        left = [start + width for start, width in zip(left, widths, strict=True)]
    _draw_limit(forecast, axes.axvline)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xlabel("GiB of live tensors at their peak, predicted, on the device that holds most")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    add_legend(figure, axes)
    return figure


def _lines(forecast: MemoryForecast, rows: Sequence[PredictedMemory]) -> Any:
    figure, axes = new_figure(6.4, 3.6)
    labels = list(dict.fromkeys(row.case.label for row in rows))
    others = itertools.cycle(OTHERS)
    for number, label in enumerate(labels):
        some = sorted(
            (row for row in rows if row.case.label == label), key=lambda row: row.case.world_size
        )
        colour = COLOURS.get(some[0].case.strategy) or next(others)
        axes.plot(
            [row.case.world_size for row in some], [(row.peak_bytes or 0) / GIB for row in some],
            label=one_line(label, limit=100), color=colour, marker=MARKERS[number % len(MARKERS)],
            markersize=5, linewidth=1.4,
        )  # fmt: skip
    _draw_limit(forecast, axes.axhline)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    axes.set_xlabel("devices")
    axes.set_ylabel("GiB at the peak, predicted")
    axes.set_ylim(0, None)
    axes.grid(alpha=0.3)
    add_legend(figure, axes)
    return figure


def _draw_limit(forecast: MemoryForecast, line: Any) -> None:
    if forecast.device_memory_bytes is None:
        return
    left = (forecast.device_memory_bytes - forecast.allowance_bytes) / GIB
    line(left, color="#333333", linewidth=1, linestyle="--", label="device less allowance")
