"""The largest batch that fits into memory, each tried in fresh processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from bench.plan.case import Case, Effort
from bench.records.record import BatchTrial, MaxBatch, Memory, Record

RESOLUTION = 32
"""The search ends when the least batch that failed is within a 32nd of the largest that fits."""
MOST = 2**24
"""Samples of one device, beyond which nobody asks."""

Trial = Literal["fits", "too_large", "broken"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """Where a search ended."""

    largest: int | None
    """Samples that fit; None where not even the least did."""
    too_large: int | None
    """The least number of samples that did not fit; None where all did."""


def search(attempt: Callable[[int], Trial], *, start: int, least: int = 1) -> Found | None:
    """Double or halve until one size fits and another does not, then bisect between the two.

    Args:
        attempt: tries so many samples on each device, from nothing.
        start: what to try first.
        least: the smallest number that makes sense.

    Returns:
        None where an attempt was ``broken``, and so says nothing about memory.
    """
    fits: int | None = None
    too_large: int | None = None
    for _ in range(2 * MOST.bit_length()):
        batch = _next(fits, too_large, max(start, least), least)
        if batch is None:
            break
        match attempt(batch):
            case "fits":
                fits = batch
            case "too_large":
                too_large = batch
            case "broken":
                return None
    return Found(largest=fits, too_large=too_large)


def _next(fits: int | None, too_large: int | None, start: int, least: int) -> int | None:
    """What to try next; None when enough is known."""
    if fits is None and too_large is None:
        return min(start, MOST)
    if fits is None:
        assert too_large is not None
        return max(least, too_large // 2) if too_large > least else None
    if too_large is None:
        return min(2 * fits, MOST) if fits < MOST else None
    if too_large - fits <= max(1, fits // RESOLUTION):
        return None
    return (fits + too_large) // 2


def with_batch(case: Case, per_device_batch: int) -> Case:
    """The same case with another batch; its id stays that of the planned one."""
    total = per_device_batch * case.world_size * case.accumulation_steps
    return msgspec.structs.replace(case, per_device_batch=per_device_batch, global_batch=total)


def obstacle(case: Case, effort: Effort, memory_bytes: int) -> str | None:
    """Why there is nothing to search, or None.

    Args:
        case: to search for.
        effort: holds the limit.
        memory_bytes: of the host.
    """
    limit_gib = effort.memory_limit_gib
    if case.scaling == "strong":
        return "strong scaling fixes the global batch; search with scaling: weak"
    if case.device != "cpu":
        return None
    if case.compile != "none":
        return "the limit would bound what compiles the model, too; search with compile: none"
    if sys.platform != "linux":
        return "only Linux can limit the memory of a process as this needs it"
    if limit_gib is None:
        return "the devices of a CPU share one memory; set memory_limit_gib, of each device"
    if memory_bytes and limit_gib * case.world_size * 2**30 > memory_bytes:
        return (
            f"{case.world_size} x {limit_gib:g} GiB are more than the "
            f"{memory_bytes / 2**30:.1f} GiB of this machine; lower memory_limit_gib"
        )
    return None


def find_max_batch(
    case: Case, launch: Callable[[Case], Record], *, limit_gib: float | None, least: int
) -> Record:
    """Search for a case; returns the one record of all launches.

    Args:
        case: whose batch comes first.
        launch: a few steps of a case, under the limit.
        limit_gib: memory of each device in GiB; None for all that it has.
        least: samples that a model needs.
    """
    tried: list[Record] = []

    def attempt(batch: int) -> Trial:
        record = launch(with_batch(case, batch))
        tried.append(record)
        known: dict[str, Trial] = {"ok": "fits", "out_of_memory": "too_large"}
        return known.get(record.status, "broken")

    found = search(attempt, start=case.per_device_batch, least=least)
    last = msgspec.structs.replace(tried[-1], case=case)
    if found is None:
        reason = f"with a batch of {tried[-1].case.per_device_batch}: {last.reason}"
        return msgspec.structs.replace(last, reason=reason)
    best = next((one for one in tried if one.case.per_device_batch == found.largest), last)
    return msgspec.structs.replace(
        best,
        case=case,
        status="ok",  # that memory does not suffice for more is what was asked
        reason=None,
        fault=None,
        log_tail=None,
        max_batch=MaxBatch(
            per_device_batch=found.largest,
            too_large=found.too_large,
            memory_limit_bytes=None if limit_gib is None else round(limit_gib * 2**30),
            trials=[
                BatchTrial(
                    per_device_batch=one.case.per_device_batch,
                    fits=one.status == "ok",
                    peak_bytes=_peaks(one.memory),
                )
                for one in tried
            ],
        ),
    )


def _peaks(memory: Memory | None) -> list[int | None]:
    """Per device: of live tensors, else of the allocator, or of the process where there is none."""
    if memory is None:
        return []
    figures = zip(
        memory.peak_allocated_bytes,
        memory.peak_reserved_bytes,
        memory.peak_process_bytes,
        strict=True,
    )
    return [next((one for one in known if one is not None), None) for known in figures]
