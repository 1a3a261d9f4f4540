from __future__ import annotations

from typing import Any

import pytest

from bench.analyze.checks import contradicts, straggler
from bench.analyze.stats import Estimate
from bench.records.record import Communication

STEP_S = 1.0


def cost(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, launches=1)


@pytest.mark.parametrize(
    ("figures", "sync_cost", "expected"),
    [
        # Moving takes 0.3 s, of which 0.1 s shows: synchronising may cost anything in between.
        ({"busy_s": 0.3, "exposed_s": 0.1, "standalone_s": 0.25}, cost(0.2, 0.1, 0.3), False),
        # A second figure that another explains within its noise is no contradiction.
        ({"busy_s": 0.3, "exposed_s": 0.3}, cost(0.05, -0.1, 0.2), False),
        # Nothing hides 0.3 s of it, and yet it costs nothing.
        ({"busy_s": 0.3, "exposed_s": 0.3}, cost(0.0, -0.01, 0.01), True),
        # It costs far more than moving and waiting together.
        ({"busy_s": 0.1, "exposed_s": 0.1, "wait_s": 0.05}, cost(0.6, 0.5, 0.7), True),
        ({"busy_s": 0.1, "exposed_s": 0.1, "wait_s": 0.5}, cost(0.6, 0.5, 0.7), False),
        # Within a busy step the bytes move three times as fast as alone.
        ({"busy_s": 0.1, "exposed_s": 0.1, "standalone_s": 0.3}, None, True),
        ({}, None, False),
    ],
)
def test_figures_that_cannot_all_be_right_are_found(
    figures: dict[str, Any], sync_cost: Estimate | None, expected: bool
) -> None:
    assert contradicts(Communication(**figures), sync_cost, STEP_S) is expected


@pytest.mark.parametrize(
    ("wait_s", "share", "expected"),
    [
        (0.2, 0.9, 3),  # a fifth of the step, nearly all of it because of one
        (0.2, 0.6, None),  # now this rank is late, now that one
        (0.05, 1.0, None),  # too short to matter
        (None, None, None),
    ],
)
def test_a_rank_that_holds_the_others_up_is_named(
    wait_s: float | None, share: float | None, expected: int | None
) -> None:
    found = Communication(wait_s=wait_s, late_share=share, late_rank=3, profiled_step_s=1.0)
    assert straggler(found) == expected
