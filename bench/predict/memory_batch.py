"""The largest batch whose predicted peak fits: memory grows with the batch nearly along a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.records.prediction import PredictedBatch

RESOLUTION = 32
"""The search ends when the least batch that is too large is within a 32nd of the largest that fits,
as that of measured batches does."""
MOST = 2**24
"""Samples of one device, beyond which nobody asks."""
MOST_TRIES_BY_LINE = 6
"""After them the middle is tried: the line has not helped."""
FURTHEST = 64
"""Times the largest batch that fits, as far as a line is trusted."""


def largest_batch(
    peak_of: Callable[[int], int], *, limit_bytes: int, start: int, least: int = 1
) -> PredictedBatch:
    """Search between a batch that fits and one that does not.

    Each guess stands where the line through the two nearest known peaks meets the limit.

    >>> largest_batch(lambda batch: 100 + 10 * batch, limit_bytes=200, start=1)
    PredictedBatch(per_device_batch=10, too_large=11)

    Args:
        peak_of: bytes at the peak of so many samples on each device.
        limit_bytes: that the peak may have.
        start: what to try first.
        least: the smallest number that makes sense.
    """
    peaks: dict[int, int] = {}
    guess: int | None = max(start, least)
    while guess is not None:
        peaks[guess] = peak_of(guess)
        guess = _next(peaks, limit_bytes, least)
    return PredictedBatch(
        per_device_batch=_most_that_fits(peaks, limit_bytes),
        too_large=_least_too_large(peaks, limit_bytes),
    )


def _most_that_fits(peaks: Mapping[int, int], limit: int) -> int | None:
    too_large = _least_too_large(peaks, limit)
    fits = [batch for batch in peaks if too_large is None or batch < too_large]
    return max(fits, default=None)


def _least_too_large(peaks: Mapping[int, int], limit: int) -> int | None:
    return min((batch for batch, peak in peaks.items() if peak > limit), default=None)


def _next(peaks: Mapping[int, int], limit: int, least: int) -> int | None:
    """What to try next; None when enough is known."""
    fits, too_large = _most_that_fits(peaks, limit), _least_too_large(peaks, limit)
    if fits is None:
        assert too_large is not None, "something was tried"
        if too_large == least:
            return None
        guess = _by_line(peaks, sorted(peaks)[:2], limit, otherwise=too_large // 2)
        return min(max(guess, least), too_large - 1)
    if too_large is None:
        if fits >= MOST:
            return None
        guess = _by_line(peaks, sorted(peaks)[-2:], limit, otherwise=2 * fits)
        return min(max(guess, fits + 1), FURTHEST * fits, MOST)
    step = max(1, fits // RESOLUTION)
    if too_large - fits <= step:
        return None
    middle = (fits + too_large) // 2
    if len(peaks) > MOST_TRIES_BY_LINE:
        return middle
    guess = _by_line(peaks, [fits, too_large], limit, otherwise=middle)
    # Where the line comes back to what is known, a step beyond it closes the gap.
    return min(max(guess, fits + step), too_large - 1)


def _by_line(peaks: Mapping[int, int], known: list[int], limit: int, *, otherwise: int) -> int:
    """Where the line through two known peaks meets the limit."""
    if len(known) < 2 or peaks[known[1]] <= peaks[known[0]]:
        return otherwise
    first, second = known
    rise = (peaks[second] - peaks[first]) / (second - first)
    return int(first + (limit - peaks[first]) / rise)
