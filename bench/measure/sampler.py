"""Look at clocks and devices, again and again, while a launch runs.

The parent of the ranks does so from a thread. On a virtual machine that shows neither clocks nor
devices a look took 0.13 ms of one core, waking up included: 0.05 % of it at four looks a second.
Where looking itself takes longer, there are fewer looks: up to a millisecond each, they stay within
``COST_SHARE``.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

from bench.errors import one_line
from bench.measure.conditions import DeviceSample, HostSample, Series
from bench.measure.cores import read_text
from bench.measure.nvml import DeviceReader, Nvml, opened

PERIOD_S, LONGEST_PERIOD_S = 0.25, 2.0
COST_SHARE = 5e-4
"""Of one core, that looking may take."""
THOROUGH_EVERY = 4
"""Looks, of which one asks also what takes long."""
CLOCKS = 8
"""Cores whose clocks are read, of all that the case uses: each is a file."""


class ClockReader:
    """Looks at the clocks of a case's cores.

    Args:
        cores: that the case may compute on.
        root: of the file system.
    """

    def __init__(self, cores: Iterable[int], root: Path = Path("/")) -> None:
        used = sorted(cores)
        chosen = used[:: -(-len(used) // CLOCKS) or 1]
        cpu = root / "sys/devices/system/cpu"
        files = [cpu / f"cpu{core}/cpufreq/scaling_cur_freq" for core in chosen]
        self._files = files if all(read_text(one) for one in files) else []
        self._numbers = frozenset(map(str, chosen))
        self._cpuinfo = root / "proc/cpuinfo"
        # Else the kernel writes down the nominal clock, which a virtual machine shows for ever.
        self._has_mhz = re.search(r"\baperfmperf\b", read_text(self._cpuinfo)) is not None

    def read(self, *, thorough: bool) -> float | None:
        """Mean frequency in Hz now; None where it is not measured.

        Args:
            thorough: look also where that means to read what is said of every CPU.
        """
        if self._files:
            found = [float(text) * 1e3 for one in self._files if (text := read_text(one))]
        elif self._has_mhz and thorough:
            found = self._from_cpuinfo()
        else:
            return None
        return sum(found) / len(found) if found else None

    def _from_cpuinfo(self) -> list[float]:
        found: list[float] = []
        number = ""
        with self._cpuinfo.open() as lines:  # not further than to the last of ours
            for line in lines:
                name, _, value = line.partition(":")
                if name.startswith("processor"):
                    number = value.strip()
                elif name.startswith("cpu MHz") and number in self._numbers:
                    found.append(float(value) * 1e6)
                    if len(found) == len(self._numbers):
                        break
        return found


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
        self._clocks = ClockReader(cores, root)
        self._names = devices
        self._pids = pids
        self._host_samples: list[HostSample] = []
        self._device_samples: list[list[DeviceSample]] = []
        self.fault: str | None = None
        """Why looking ended before the launch, if it did."""
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
        return Series(host=self._host_samples, devices=self._device_samples)

    def _watch(self) -> None:
        try:
            self._look_until_over()
        except Exception as error:  # noqa: BLE001 - no measurement is lost to its circumstances
            self.fault = one_line(f"{type(error).__name__}: {error}")

    def _look_until_over(self) -> None:
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
        self._host_samples.append(
            HostSample(
                at_s=time.monotonic(),
                parent_s=time.process_time(),
                frequency_hz=self._clocks.read(thorough=thorough),
            )
        )
        for reader, samples in zip(readers, self._device_samples, strict=True):
            samples.append(reader.read(time.monotonic(), thorough=thorough))


def period_s(cost_s: float) -> float:
    """Time until the next look, from what the last one cost.

    >>> period_s(50e-6), period_s(500e-6), period_s(1.0)
    (0.25, 1.0, 2.0)
    """
    return min(LONGEST_PERIOD_S, max(PERIOD_S, cost_s / COST_SHARE))
