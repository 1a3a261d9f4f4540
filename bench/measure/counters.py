"""What the kernel counts of the cores that a case may use: read at both ends of a window.

By a rank, at the moment: counters that were read a quarter of a second before or after belong to
warming up and to leaving, which load the cores otherwise than the window does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bench.measure.cores import cgroup_levels, one_per_core, own_cgroup, read_text, siblings

IDLE, STEAL, GUEST = 3, 7, 8
"""Columns of a CPU in ``/proc/stat``, proc_stat(5): user, nice, system, idle, iowait, irq, softirq,
steal; then guests' time, which is part of user's."""


class CoresUse(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the cores' time within a window; seconds, summed over logical CPUs."""

    cores: int
    """Physical cores that the case may use."""
    cpus: int
    """Their logical CPUs: a program on the other thread of a core takes from the case too."""
    counted_s: float | None = None
    """All that the kernel has counted."""
    no_program_s: float | None = None
    """Of it: idle, waiting for a disk, interrupts, stolen. Idle time is exact where the kernel
    sleeps without ticks, unlike programs' time; so what these took is what the rest left."""
    steal_s: float | None = None
    """Of it: given to other machines by the hypervisor."""
    throttled_s: float | None = None
    """Held back by a quota."""


class Counters:
    """Counts from the moment it is made.

    Args:
        cores: that the case may compute on.
        root: of the file system.
    """

    def __init__(self, cores: Iterable[int], root: Path = Path("/")) -> None:
        cpu = root / "sys/devices/system/cpu"
        self._proc = root / "proc"
        used = sorted(cores)
        self._cores = len(one_per_core(used, lambda one: siblings(one, cpu)))
        self._names = {f"cpu{one}" for core in used for one in siblings(core, cpu)}
        groups = cgroup_levels(root / "sys/fs/cgroup", own_cgroup(self._proc), "cpu")
        self._quotas = [group / "cpu.stat" for group in groups]
        self._ticks_before = self._ticks()
        self._throttled_before = self._throttled_s()

    def use(self) -> CoresUse:
        """What became of the cores' time since then; None for what is not counted here."""
        ticks, before = self._ticks(), self._ticks_before
        grown: tuple[float | None, ...] = (None, None, None)
        if ticks is not None and before is not None:
            tick_s = 1 / os.sysconf("SC_CLK_TCK")
            grown = tuple((one - other) * tick_s for one, other in zip(ticks, before, strict=True))
        counted_s, no_program_s, steal_s = grown
        throttled_s, earlier_s = self._throttled_s(), self._throttled_before
        return CoresUse(
            cores=self._cores,
            cpus=len(self._names),
            counted_s=counted_s,
            no_program_s=no_program_s,
            steal_s=steal_s,
            throttled_s=None
            if throttled_s is None or earlier_s is None
            else throttled_s - earlier_s,
        )

    def _ticks(self) -> tuple[int, int, int] | None:
        """(counted, without a program, stolen); None where a CPU is missing."""
        counted = no_program = steal = seen = 0
        for line in read_text(self._proc / "stat").splitlines():
            name, _, rest = line.partition(" ")
            if not name.startswith("cpu"):
                break
            if name in self._names:
                ticks = [int(word) for word in rest.split()[:GUEST]]
                counted += sum(ticks)
                no_program += sum(ticks[IDLE:])
                steal += ticks[STEAL]
                seen += 1
        return (counted, no_program, steal) if seen == len(self._names) else None

    def _throttled_s(self) -> float | None:
        """In our control group and in all above it, in either version's words."""
        found = [
            re.search(r"^throttled_(usec|time) (\d+)$", read_text(path), re.MULTILINE)
            for path in self._quotas
        ]
        told = [one for one in found if one is not None]
        unit_s = {"usec": 1e-6, "time": 1e-9}
        return sum(int(one[2]) * unit_s[one[1]] for one in told) if told else None
