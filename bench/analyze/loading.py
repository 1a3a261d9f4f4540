"""Whether the input pipeline keeps up with the step."""

from __future__ import annotations

from bench.analyze.rows import Row

BINDS = 0.1
"""Share of a step spent waiting for a batch from which the loader is said to bind."""


def loading_share(row: Row) -> float | None:
    """Share of a timed step that waits for its batches, the copy to the device included.

    None where batches are on the device beforehand, or nothing was measured.

    A step of 100 ms whose data phase takes 25 ms waits for a quarter of its time. Both are medians
    over steps, and over launches, on the slowest process.
    """
    if row.case.data == "device" or row.phases is None or not row.step_median_s:
        return None
    return row.phases.data_s / row.step_median_s


def flags_of_loading(row: Row) -> list[str]:
    """Flags that follow from how long a step waits for its batches."""
    share = loading_share(row)
    return ["loader_binds"] if share is not None and share >= BINDS else []
