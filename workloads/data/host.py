"""The workload's own samples through a DataLoader: loaded, collated and copied, but no files."""

from __future__ import annotations

from typing import Annotated

import msgspec

from workloads.data.base import SampledOptions, Source, needs_own, open_own, own_count


class HostOptions(SampledOptions, frozen=True, kw_only=True):
    """Settings of ``host``."""

    samples: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of an epoch; null is 256 batches of each device, or the whole data set of a workload that has
    one. Helps to see what the end of an epoch costs, where it is small. Costs nothing: random
    samples are drawn when they are loaded."""


SOURCES = (
    Source(
        name="host",
        summary="the workload's own samples, on the host, one by one through a DataLoader",
        options=HostOptions,
        check=needs_own,
        count=own_count,
        open=open_own,
        of_workload=True,
    ),
)
