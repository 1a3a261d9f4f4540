"""How a process joins the others of its launch, and where it runs."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch import distributed

from bench.measure.operations import carrier, is_carried_by
from bench.records.record import Placement


def join_group(
    backend: str,
    device: torch.device,
    *,
    launch_s: float,
    group_device: torch.device | None,
) -> None:
    """Join the process group of the launch. Control messages always go over gloo.

    Args:
        backend: of the collectives on the device.
        device: of this process.
        launch_s: how long the launch may take: the parent ends a stuck one, with stacks, and the
            group must not do it first.
        group_device: see ``Device.group_device``.
    """
    if backend != "gloo" and device.type != "cpu":
        backend = f"cpu:gloo,{device.type}:{backend}"
    timeout = timedelta(seconds=2 * launch_s + 60)
    distributed.init_process_group(backend, timeout=timeout, device_id=group_device)


def placement() -> Placement:
    """Where this process runs."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    return Placement(cores=sorted(cores), threads=torch.get_num_threads())


def require_carrier(backend: str, device: torch.device) -> None:
    """Look at what carries collectives of a device, which need not be what was asked for.

    Raises:
        RuntimeError: it is something else.
    """
    found = carrier(device)
    if not is_carried_by(backend, found):
        raise RuntimeError(f"collectives are carried by {found}, not by {backend}")
