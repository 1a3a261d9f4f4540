from __future__ import annotations

import pytest

from bench.predict.memory_batch import MOST, largest_batch
from bench.records.prediction import PredictedBatch


@pytest.mark.parametrize("start", [1, 7, 10, 11, 500])
def test_a_line_is_met_where_it_meets_the_limit(start: int) -> None:
    tried: list[int] = []

    def peak_of(batch: int) -> int:
        tried.append(batch)
        return 100 + 10 * batch

    found = largest_batch(peak_of, limit_bytes=205, start=start)
    assert found == PredictedBatch(per_device_batch=10, too_large=11)
    assert len(tried) <= 6


def test_a_bend_is_found_too() -> None:
    # The optimizer's temporaries are the peak up to 40 samples, activations from there on.
    found = largest_batch(lambda batch: max(1000, 25 * batch), limit_bytes=5000, start=1)
    assert found.per_device_batch is not None
    assert found.too_large is not None
    assert found.per_device_batch <= 200 < found.too_large
    assert found.too_large - found.per_device_batch <= 200 // 32


def test_nothing_fits() -> None:
    found = largest_batch(lambda batch: 100 + batch, limit_bytes=50, start=64, least=2)
    assert found == PredictedBatch(per_device_batch=None, too_large=2)


def test_everything_fits() -> None:
    found = largest_batch(lambda _: 1, limit_bytes=50, start=64)
    assert found == PredictedBatch(per_device_batch=MOST, too_large=None)
