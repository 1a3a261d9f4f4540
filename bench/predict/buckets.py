"""Which gradients DDP sends together: torch's own rule, on sizes alone.

``compute_bucket_assignment_by_size`` of torch's reducer: gradients are laid one after the other
into a bucket, which closes once its size reaches the limit, so that it exceeds it. The first limit
holds for the first bucket, the next for the next, the last for all others. Without a cap the first
limit is 1 MiB. After the first backward the order is that in which gradients became ready; while
DDP searches for unused parameters it is never that, but the model's own, backwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MIB = 2**20
DEFAULT_CAP_MB, FIRST_CAP_MB = 25.0, 1.0


def limits(options: Mapping[str, Any]) -> list[int]:
    """Bytes at which buckets close, in their order; the last one holds for the rest.

    >>> limits({}), limits({"bucket_cap_mb": 25})
    ([1048576, 26214400], [26214400])
    """
    each = options.get("bucket_cap_mb_list")
    if each:
        return [int(cap * MIB) for cap in each]
    cap = options.get("bucket_cap_mb")
    caps = [FIRST_CAP_MB, DEFAULT_CAP_MB] if cap is None else [cap]
    return [int(one * MIB) for one in caps]


def assign(sizes: Sequence[int], caps: Sequence[int]) -> list[list[int]]:
    """Indices of the gradients in each bucket, in the order in which they come.

    Args:
        sizes: bytes of each gradient in that order.
        caps: of ``limits``.

    >>> assign([4, 4, 4, 4], [1, 6])
    [[0], [1, 2], [3]]
    """
    buckets: list[list[int]] = []
    current: list[int] = []
    filled = 0
    for index, size in enumerate(sizes):
        current.append(index)
        filled += size
        if filled >= caps[min(len(buckets), len(caps) - 1)]:
            buckets.append(current)
            current, filled = [], 0
    return [*buckets, current] if current else buckets


def layout(sizes: Sequence[int], options: Mapping[str, Any]) -> list[list[int]]:
    """Buckets in the order in which they are sent, as indices of gradients.

    Args:
        sizes: bytes of each gradient, in the order in which they become ready.
        options: of ``ddp``.
    """
    caps = limits(options)
    if options.get("find_unused_parameters") and not options.get("static_graph"):
        # Laid out in the model's order, about that of readiness backwards, and sent last first.
        last = len(sizes) - 1
        found = assign(list(reversed(sizes)), caps)
        return [[last - index for index in reversed(one)] for one in reversed(found)]
    return assign(sizes, caps)
