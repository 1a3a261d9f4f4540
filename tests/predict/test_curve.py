from __future__ import annotations

import pytest

from bench.predict.curve import Curve, fit, of_rows
from tests.predict.made import row


def test_between_points_lines_are_straight_on_logarithms() -> None:
    curve = Curve(bytes=(1, 100), seconds=(1.0, 100.0))
    assert curve.at(10) == pytest.approx(10.0)
    assert curve.at(0) == 0


def test_below_it_is_latency_and_above_it_is_bandwidth() -> None:
    curve = Curve(bytes=(1000, 2000), seconds=(1.0, 1.5))
    assert curve.at(10) == pytest.approx(1.0)
    assert curve.at(4000) == pytest.approx(3.0)


def test_one_disturbed_point_does_not_make_more_bytes_quicker() -> None:
    curve = fit([(1, 1.0), (10, 9.0), (100, 4.0), (1000, 16.0)])
    # 9 and 4 change places on logarithms: both become their geometric mean, 6.
    assert curve.seconds == pytest.approx((1.0, 6.0, 6.0, 16.0))


def test_points_of_one_size_are_their_median() -> None:
    assert fit([(5, 1.0), (5, 2.0), (5, 100.0)]).seconds == pytest.approx((2.0,))


def test_rows_make_curves_alone_and_in_a_row_type_by_type() -> None:
    rows = [
        row(1000, 2.0, back_to_back_s=1.0),
        row(1000, 4.0, dtype="fp16"),
        row(1000, 9.0, status="failed"),
        row(1000, 9.0, world_size=1),
    ]
    found = of_rows(rows)
    assert set(found) == {("all_reduce", 2), ("all_reduce:fp16", 2)}
    assert found["all_reduce", 2].alone.at(1000) == pytest.approx(2.0)
    assert found["all_reduce", 2].in_row.at(1000) == pytest.approx(1.0)
    assert found["all_reduce:fp16", 2].in_row.at(1000) == pytest.approx(4.0)
