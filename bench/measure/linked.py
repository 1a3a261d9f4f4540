"""Which devices are near each other: in what order to use them, and what lies between them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

SWITCH = "NVSwitch"
BRIDGES = ("SYS", "NODE", "PHB", "PXB", "PIX")
"""Paths without NVLink in the words of ``nvidia-smi topo``, the longest first."""
NVLINK = re.compile(r"NV(\d+)")
NVLS_CAPABILITY = 9
"""Major compute capability from which NCCL has a switch reduce what passes it (NVLink SHARP)."""

Links = Mapping[str, str | None]
"""Of one device, by the position of each other: as ``describe_devices`` has them."""


def near_order(links: Sequence[Links]) -> list[int]:
    """Positions of devices so that each is linked to those before it as well as may be.

    So 2 of them, and 4, are those with the quickest links between them. Where all are linked alike,
    the order stays.

    >>> near_order([{"1": "SYS", "2": "NV4"}, {"0": "SYS", "2": "SYS"}, {"0": "NV4", "1": "SYS"}])
    [0, 2, 1]
    """
    left = list(range(len(links)))
    chosen = left[:1]
    while len(chosen) < len(left):
        others = [one for one in left if one not in chosen]
        chosen.append(max(others, key=lambda one: sum(_value(links[one], to) for to in chosen)))
    return chosen


def _value(links: Links, to: int) -> int:
    """More for a quicker link; any NVLink is quicker than any bridge."""
    path = links.get(str(to))
    if path is None:
        return 0
    if path == SWITCH:
        return 100
    if (found := NVLINK.fullmatch(path)) is not None:
        return len(BRIDGES) + int(found[1])
    return BRIDGES.index(path) + 1 if path in BRIDGES else 0


def may_reduce_in_switch(places: Sequence[Mapping[str, Any]], capability: int) -> bool:
    """Whether a switch between the devices can reduce: each then sends less than in a ring.

    Args:
        places: of the devices, as ``describe_devices`` has them.
        capability: their major compute capability.
    """
    paths = [path for place in places for path in (place.get("links") or {}).values()]
    return capability >= NVLS_CAPABILITY and SWITCH in paths
