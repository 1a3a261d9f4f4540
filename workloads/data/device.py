"""Batches that are made on the device beforehand: no input pipeline at all."""

from __future__ import annotations

from workloads.base import Options
from workloads.data.base import Source


class DeviceOptions(Options, frozen=True, kw_only=True):
    """There is nothing to set."""


SOURCES = (
    Source(
        name="device",
        summary="a few batches made on the device beforehand and used again: no input pipeline",
        options=DeviceOptions,
    ),
)
