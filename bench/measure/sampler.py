"""Look at the host's and the devices' counters, again and again, while a launch runs.

The parent of the ranks does so from a thread. A look at two cores and no device takes PLACEHOLDER.
Where it takes longer, there are fewer of them, so that up to a millisecond a look the watching
takes a two-thousandth of one core at most.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

from bench.measure.conditions import DeviceSample, HostSample, Series
from bench.measure.machine import cgroup_levels, one_per_core, own_cgroup, read_text, siblings
from bench.measure.nvml import DeviceReader, Nvml, opened

PERIOD_S, LONGEST_PERIOD_S = 0.25, 2.0
COST_SHARE = 5e-4
"""Of one core, that looking may take."""
THOROUGH_EVERY = 4
"""Looks, of which one asks also what takes long."""
CLOCKS = 8
"""Cores whose clocks are read, of all that the case uses: each is a file."""
IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, GUEST = 3, 4, 5, 6, 7, 8
"""Columns of a CPU in ``/proc/stat``: see proc_stat(5). Guests' time is part of user's."""


class HostReader:
    """Looks at the cores of a case.

    Idle time is exact where the kernel keeps it so, unlike the time of programs, which it counts by
    ticks; so what programs took is what the rest left.

    Args:
        cores: that the case may compute on.
        root: of the file system.
    """

    def __init__(self, cores: Iterable[int], root: Path = Path("/")) -> None:
        cpu = root / "sys/devices/system/cpu"
        used = sorted(cores)
        self.cores = len(one_per_core(used, lambda one: siblings(one, cpu)))
        """Physical ones."""
        watched = sorted({sibling for core in used for sibling in siblings(core, cpu)})
        self.cpus = len(watched)
        """Logical ones: a program on the other thread of a core takes from the case too."""
        self._names = frozenset(f"cpu{one}" for one in watched)
        self._proc = root / "proc"
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        chosen = used[:: -(-len(used) // CLOCKS) or 1]
        clocks = [cpu / f"cpu{core}/cpufreq/scaling_cur_freq" for core in chosen]
        self._clocks = clocks if all(read_text(one) for one in clocks) else []
        self._numbers = frozenset(map(str, chosen))
        # Else the kernel writes down the nominal clock, which a virtual machine shows for ever.
        self._has_mhz = re.search(r"\baperfmperf\b", read_text(self._proc / "cpuinfo")) is not None
        groups = cgroup_levels(root / "sys/fs/cgroup", own_cgroup(self._proc), "cpu")
        files = [group / "cpu.stat" for group in groups]
        self._quotas = [one for one in files if _throttled_s(read_text(one)) is not None]

    def read(self, at_s: float, *, thorough: bool) -> HostSample:
        """The counters now.

        Args:
            at_s: monotonic time.
            thorough: also look for clocks where that means to read what is said of every CPU.
        """
        counted, no_program, steal = self._counters()
        throttled = [_throttled_s(read_text(one)) for one in self._quotas]
        told = [one for one in throttled if one is not None]
        return HostSample(
            at_s=at_s,
            counted_s=counted,
            no_program_s=no_program,
            steal_s=steal,
            parent_s=time.process_time(),
            frequency_hz=self._frequency_hz(thorough=thorough),
            throttled_s=sum(told) if told else None,
        )

    def _counters(self) -> tuple[float, float, float] | tuple[None, None, None]:
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
        if seen < self.cpus:
            return None, None, None
        return counted * self._tick_s, no_program * self._tick_s, steal * self._tick_s

    def _frequency_hz(self, *, thorough: bool) -> float | None:
        if self._clocks:
            found = [float(text) * 1e3 for one in self._clocks if (text := read_text(one))]
        elif self._has_mhz and thorough:
            found = self._from_cpuinfo()
        else:
            return None
        return sum(found) / len(found) if found else None

    def _from_cpuinfo(self) -> list[float]:
        found: list[float] = []
        number = ""
        with (self._proc / "cpuinfo").open() as lines:  # not further than to the last of ours
            for line in lines:
                name, _, value = line.partition(":")
                if name.startswith("processor"):
                    number = value.strip()
                elif name.startswith("cpu MHz") and number in self._numbers:
                    found.append(float(value) * 1e6)
                    if len(found) == len(self._numbers):
                        break
        return found


def _throttled_s(text: str) -> float | None:
    """Time held back as a control group's ``cpu.stat`` counts it, in either version's words."""
    found = re.search(r"^throttled_(usec|time) (\d+)$", text, re.MULTILINE)
    return int(found[2]) * {"usec": 1e-6, "time": 1e-9}[found[1]] if found else None


class Sampler:
    """Watches a launch from a thread of this process, for as long as its block runs.

    Args:
        cores: that the case may compute on.
        devices: UUIDs of the case's devices; none where NVML knows nothing of them.
        pids: processes that use the devices for us, as far as they have started.
        root: of the file system.
    """

    def __init__(
        self,
        *,
        cores: Iterable[int],
        devices: Sequence[str],
        pids: Callable[[], Iterable[int]],
        root: Path = Path("/"),
    ) -> None:
        self._host = HostReader(cores, root)
        self._names = devices
        self._pids = pids
        self._host_samples: list[HostSample] = []
        self._device_samples: list[list[DeviceSample]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def series(self) -> Series:
        """All that was read. After the block."""
        return Series(
            cores=self._host.cores,
            cpus=self._host.cpus,
            host=self._host_samples,
            devices=self._device_samples,
        )

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            nvml = stack.enter_context(opened()) if self._names else None
            readers = self._readers(nvml)
            for number in itertools.count():
                is_last = self._over.is_set()
                begin_s = time.thread_time()
                self._look(readers, thorough=is_last or number % THOROUGH_EVERY == 0)
                if is_last:
                    return
                self._over.wait(period_s(time.thread_time() - begin_s))

    def _readers(self, nvml: Nvml | None) -> list[DeviceReader]:
        if nvml is None:
            return []
        readers = [DeviceReader(nvml, name, self._pids) for name in self._names]
        self._device_samples = [[] for _ in readers]
        return readers

    def _look(self, readers: Sequence[DeviceReader], *, thorough: bool) -> None:
        self._host_samples.append(self._host.read(time.monotonic(), thorough=thorough))
        for reader, samples in zip(readers, self._device_samples, strict=True):
            samples.append(reader.read(time.monotonic(), thorough=thorough))


def period_s(cost_s: float) -> float:
    """Time until the next look, from what the last one cost.

    >>> period_s(50e-6), period_s(500e-6), period_s(1.0)
    (0.25, 1.0, 2.0)
    """
    return min(LONGEST_PERIOD_S, max(PERIOD_S, cost_s / COST_SHARE))
