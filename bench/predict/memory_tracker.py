"""Every allocation of a step on tensors without data, written down as a profile would show it.

torch's own ``MemTracker`` keeps the account: which storages there are, how large, and when they go.
What it sees is written as the events of a profile, so that one reader, that of measured profiles,
says what the peak is and what it is made of (``bench.measure.allocations``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.distributed._tools.mem_tracker import MemTracker, _UpdateType

from bench.measure.allocations import Allocations, read_allocations
from bench.measure.ranges import STEPS, mark_range
from bench.measure.trace import Event
from bench.predict.memory_kernels import workspace_bytes

THREAD = 0
ENTER, EXIT = "profiler::_record_function_enter_new", "profiler::_record_function_exit"
COLLECTIVE = "c10d::"
BLOCK_BYTES = {"cuda": 512, "xpu": 512}
"""What the caching allocator of a device type rounds each tensor up to, and counts as allocated:
``kMinBlockSize`` in c10/cuda/CUDACachingAllocator.h. A CPU's counts bytes as they are."""


class AllocationLog(MemTracker):
    """A tracker that writes down each change, and what range of the profile it happened in.

    Time is the number of changes so far. Statistics of single modules, which the tracker is made
    for, are left out: with hundreds of modules they take most of the time.

    Args:
        device: type of the device that is predicted; the tensors themselves are a CPU's.
        backend: that would carry the collectives.
    """

    def __init__(self, device: str, backend: str | None) -> None:
        super().__init__()
        self._device = device
        self._backend = backend
        self._block_bytes = BLOCK_BYTES.get(device, 1)
        self._now = 0
        self._count = 0
        self._events: list[Event] = []
        self._open: list[tuple[str, int]] = []
        self._alive: dict[int, tuple[int, int]] = {}
        """(address, bytes) of each storage that there is, by the identity of torch's account."""
        self._held: list[dict[int, str]] = []
        self._begin = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator; ranges and what a kernel needs for itself are written down too."""
        name, begin = func.name(), self._tick()
        if name.startswith(ENTER):
            self._open.append((str(args[0]), begin))
        elif name.startswith(EXIT) and self._open:
            self._close(*self._open.pop())
        result = super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        extra = workspace_bytes(name, args, device=self._device, backend=self._backend)
        if result is not NotImplemented and extra:
            address = self._new_address()
            self._change(address, extra)
            self._change(address, -extra)
        if name.startswith(COLLECTIVE):
            self._close(name, begin)
        return result

    def address_of(self, tensor: Tensor) -> int | None:
        """What stands in the log for a tensor's storage; None for one that is not in it."""
        part = getattr(tensor, "_local_tensor", tensor)
        account, _ = self._WINFO.get(part.untyped_storage(), (None, None))  # type: ignore[no-untyped-call]
        return self._alive.get(id(account), (None, 0))[0]

    def born_since(self, count: int) -> list[int]:
        """Addresses of what was allocated after so many allocations, and still is."""
        return [address for address, _ in self._alive.values() if address > count]

    @property
    def allocations(self) -> int:
        """How many there were so far."""
        return self._count

    def begin_steps(self) -> None:
        """From here on the peak is looked for."""
        self._begin = self._tick()

    def mark(self, phase: str, held: Mapping[str, Iterable[Tensor]], data: Iterable[int]) -> None:
        """A phase has ended.

        Args:
            phase: its name.
            held: what a session holds now, by category.
            data: addresses of batches.
        """
        known = dict.fromkeys(data, "data")
        for name, tensors in held.items():
            found = (self.address_of(tensor) for tensor in tensors)
            known |= {address: name for address in found if address is not None}
        self._events.append(self._range(mark_range(phase), self._tick()))
        self._held.append(known)

    def read(self, devices: int) -> Allocations:
        """The steps since ``begin_steps``, as a profile of them would be read.

        Args:
            devices: that the process stands for.
        """
        self._events.append(self._range(STEPS, self._begin))
        return read_allocations(self._events, devices, self._held)

    def _update_snap(self, u_type: _UpdateType, winfo: Any, *others: Any, **named: Any) -> None:
        super()._update_snap(u_type, winfo, *others, **named)
        if u_type is _UpdateType.REF:
            return
        before, after = self._alive.pop(id(winfo), None), self._rounded(winfo.mem_consumed)
        if before is not None:
            self._change(before[0], -before[1])
        if u_type is not _UpdateType.DEL and after:
            address = self._new_address()
            self._alive[id(winfo)] = (address, after)
            self._change(address, after)

    def _rounded(self, size: int) -> int:
        return -(-size // self._block_bytes) * self._block_bytes

    def _new_address(self) -> int:
        self._count += 1
        return self._count

    def _change(self, address: int, size: int) -> None:
        arguments = {"Addr": address, "Bytes": size}
        self._events.append(
            {"ph": "i", "name": "[memory]", "tid": THREAD, "ts": self._tick(), "args": arguments}
        )

    def _close(self, name: str, begin: int) -> None:
        self._events.append(self._range(name, begin))

    def _range(self, name: str, begin: int) -> Event:
        kind = {"ph": "X", "cat": "user_annotation", "tid": THREAD}
        return {**kind, "name": name, "ts": begin, "dur": self._tick() - begin}

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _update_peak_stats(self, *_: Any) -> None:
        """The reader looks for the peak."""

    def _pre_fw_hook(self, *_: Any) -> None:
        """No statistics of modules."""

    def _post_fw_hook(self, *_: Any) -> None:
        """Likewise."""

    def _pre_bw_hook(self, *_: Any) -> None:
        """Likewise."""

    def _post_bw_hook(self, *_: Any) -> None:
        """Likewise."""
