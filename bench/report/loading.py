"""Sentences on the input pipeline: where it binds, and where it slows the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.analyze.loading import BINDS, loading_share
from bench.analyze.rows import Row
from bench.errors import plural
from bench.report.naming import Names, listed


def loading(rows: Sequence[Row], names: Names) -> Iterator[str]:
    """Where the loader binds, where it does not, and where it slows the step without a wait."""
    known = [
        (share, row)
        for row in rows
        if not row.is_proved_wrong and (share := loading_share(row)) is not None
    ]
    for size in sorted({row.case.world_size for _, row in known}, reverse=True):
        there = sorted(
            ((share, row) for share, row in known if row.case.world_size == size),
            key=lambda pair: -pair[0],
        )
        bound = [(share, row) for share, row in there if share >= BINDS]
        where = f"on {plural(size, 'device')}"
        if bound:
            texts = [f"{names(row)} ({share:.0%})" for share, row in bound]
            yield (
                f"The loader binds {where}, where this much of a step is waiting for data: "
                f"{listed(texts, 12)}."
            )
        free = [(share, row) for share, row in there if share < BINDS]
        if free:
            share, row = free[0]
            others = "of the others " if bound else ""
            yield (
                f"The loader does not bind {where}: at most {share:.0%} of a step {others}is "
                f"waiting for data ({names(row)})."
            )
        slowed = [row for _, row in free if _is_slowed(row)]
        if slowed:
            texts = [f"{names(row)} ({_change(row):+.0%})" for row in slowed]
            yield (
                f"Clearly slower {where} than with batches made on the device, though hardly "
                f"anything waits for data: {listed(texts, 12)}. What loads takes the time of what "
                "trains, such as its cores or its memory."
            )


def _is_slowed(row: Row) -> bool:
    """Whether the row differs from its plain one in where data come from alone, and is slower."""
    is_alone = [one.name for one in row.settings] == ["data_label"]
    return is_alone and row.setting.verdict == "slower"


def _change(row: Row) -> float:
    ratio = row.setting.ratio
    assert ratio is not None, "what has a verdict has a ratio"
    return ratio.value - 1
