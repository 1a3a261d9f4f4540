from __future__ import annotations

from typing import Any

import pytest

from bench.measure.linked import may_reduce_in_switch, near_order


def links_of(pairs: dict[tuple[int, int], str], count: int) -> list[dict[str, str | None]]:
    """SYS between all that are not named."""
    return [
        {
            str(other): pairs.get((min(one, other), max(one, other)), "SYS")
            for other in range(count)
            if other != one
        }
        for one in range(count)
    ]


@pytest.mark.parametrize(
    ("pairs", "count", "order"),
    [
        ({}, 4, [0, 1, 2, 3]),
        ({(0, 2): "NV4", (1, 3): "NV4"}, 4, [0, 2, 1, 3]),  # bridges across
        ({(0, 3): "PIX", (1, 2): "PIX"}, 4, [0, 3, 1, 2]),
        ({(0, 1): "PIX", (0, 2): "NV1"}, 3, [0, 2, 1]),  # the least NVLink beats a bridge
        ({(0, 1): "NV1", (0, 3): "NV2"}, 4, [0, 3, 1, 2]),
        ({}, 1, [0]),
        ({}, 0, []),
    ],
)
def test_the_first_devices_are_those_with_the_quickest_links(
    pairs: dict[tuple[int, int], str], count: int, order: list[int]
) -> None:
    assert near_order(links_of(pairs, count)) == order


def test_a_switch_links_all_alike_and_what_is_not_known_comes_last() -> None:
    all_alike = [{str(other): "NVSwitch" for other in range(4) if other != one} for one in range(4)]
    assert near_order(all_alike) == [0, 1, 2, 3]
    partly: list[dict[str, str | None]] = [
        {"1": None, "2": "SYS"},
        {"0": None, "2": "SYS"},
        {"0": "SYS", "1": "SYS"},
    ]
    assert near_order(partly) == [0, 2, 1]


@pytest.mark.parametrize(
    ("path", "capability", "expected"),
    [("NVSwitch", 9, True), ("NVSwitch", 8, False), ("NV4", 9, False), (None, 9, False)],
)
def test_a_switch_reduces_from_hopper_on(path: Any, capability: int, expected: bool) -> None:
    places: list[dict[str, Any]] = [{"links": {"1": path}}, {"links": None}]
    assert may_reduce_in_switch(places, capability) is expected
