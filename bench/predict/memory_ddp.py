"""What ``DistributedDataParallel`` does to memory: its own reducer is C++, and runs on data.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020, section
4, and torch/csrc/distributed/c10d/reducer.cpp:

- a bucket is one flat tensor, made with the module, and made anew once the order is known in which
  gradients become ready: its storage is there all the time;
- a gradient is copied into its bucket as soon as it is whole. ``gradient_as_bucket_view`` then
  makes the gradient a view of the bucket, so that its own storage goes; without it, it stays;
- a full bucket is all-reduced in place, or given to a hook. What a hook sends in its stead is taken
  to be under way until the next bucket is full, or backward is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import (
    _DEFAULT_FIRST_BUCKET_BYTES,
    _compute_bucket_assignment_by_size,
)
from torch.futures import Future

from bench.strategies import groups

MIB = 2**20
DEFAULT_CAP_MIB = 25
"""Of all buckets but the first, where no cap is given."""

CHAINED: tuple[tuple[Any, str], ...] = (
    (distributed, "all_reduce"),
    (groups, "REDUCE_SCATTER"),
    (groups, "ALL_GATHER"),
)
"""Collectives whose end hooks wait for to go on. What each gives is its first argument."""


class Bucket:
    """Some gradients that are reduced at once; a hook sees it as it sees torch's ``GradBucket``."""

    def __init__(self, index: int, parameters: Sequence[nn.Parameter], *, is_last: bool) -> None:
        first = parameters[0]
        self._index = index
        self._parameters = list(parameters)
        self._is_last = is_last
        size = sum(parameter.numel() for parameter in parameters)
        self._flat = torch.empty(size, dtype=first.dtype, device=first.device)
        sizes = [parameter.numel() for parameter in parameters]
        parts = zip(torch.split(self._flat, sizes), parameters, strict=True)
        self._views = [part.view(parameter.shape) for part, parameter in parts]
        self.left = len(parameters)

    def index(self) -> int:
        """Its place in the order of reduction."""
        return self._index

    def buffer(self) -> Tensor:
        """All gradients, flat."""
        return self._flat

    def set_buffer(self, tensor: Tensor) -> None:
        """Take another flat tensor."""
        self._flat = tensor

    def parameters(self) -> list[nn.Parameter]:
        """Those whose gradients it holds."""
        return self._parameters

    def gradients(self) -> list[Tensor]:
        """Views of the buffer, in the shapes of the parameters."""
        return self._views

    def is_last(self) -> bool:
        """Whether no other follows."""
        return self._is_last


class BucketedModule(nn.Module):
    """Stands in for ``DistributedDataParallel`` where tensors have no data.

    Args:
        module: to wrap.
        bucket_cap_mb: see torch.
        bucket_cap_mb_list: see torch.
        static_graph: see torch.
        gradient_as_bucket_view: see torch.
        find_unused_parameters: see torch.
        broadcast_buffers: see torch.
        forward_sync_buffers: its newer name.
        other: what changes no memory.
    """

    def __init__(  # noqa: PLR0913 - as torch has it
        self,
        module: nn.Module,
        *,
        bucket_cap_mb: float | None = None,
        bucket_cap_mb_list: Sequence[float] | None = None,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = False,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        forward_sync_buffers: bool | None = None,
        **other: Any,
    ) -> None:
        super().__init__()
        del other
        self.module = module
        self.static_graph = static_graph
        self.find_unused_parameters = find_unused_parameters
        self._as_views = gradient_as_bucket_view
        self._syncs_buffers = broadcast_buffers and forward_sync_buffers is not False
        self._limits = _limits(bucket_cap_mb, bucket_cap_mb_list)
        self._is_synchronised = True
        self._hook: tuple[Any, Callable[[Any, Any], Any]] | None = None
        self._under_way: list[Tensor] = []
        self._ready: list[nn.Parameter] = []
        self._is_rebuilt = False
        self._sparse = _sparse_weights(module)
        own = [one for one in module.parameters() if one.requires_grad]
        dense = [one for one in own if one not in self._sparse]
        self._buckets: list[Bucket] = []
        self._place: dict[nn.Parameter, tuple[Bucket, Tensor]] = {}
        self._fill(list(reversed(_buckets_of(dense, self._limits))))
        if find_unused_parameters:  # which parameters this rank used, on host and device
            used = [torch.zeros(len(own), dtype=torch.int32) for _ in range(2)]
            self._used = used
        for parameter in own:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Broadcast buffers, then the module's own."""
        if torch.is_grad_enabled() and self._is_synchronised:
            self._rebuild()
        buffers = [one for one in self.module.buffers() if one is not None]
        if self._syncs_buffers and buffers and self._is_synchronised:
            _flatten_and_forget(buffers)
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients local."""
        before, self._is_synchronised = self._is_synchronised, False
        try:
            yield
        finally:
            self._is_synchronised = before

    def register_comm_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """Give buckets to a hook in place of an all-reduce."""
        self._hook = (state, hook)

    def held_tensors(self) -> dict[str, list[Tensor]]:
        """Storage of the buckets, and what a hook keeps from step to step."""
        state = None if self._hook is None else self._hook[0]
        kept = [
            tensor
            for name in ("error_dict", "p_memory_dict", "q_memory_dict")
            for tensor in getattr(state, name, {}).values()
        ]
        return {"communication": kept, "buckets": [one.buffer() for one in self._buckets]}

    def _get_ddp_logging_data(self) -> dict[str, str]:
        sizes = ", ".join(str(one.buffer().nbytes) for one in self._buckets)
        return {"bucket_sizes": sizes, "rebuilt_bucket_sizes": sizes if self._is_rebuilt else ""}

    def _rebuild(self) -> None:
        """Once, before the second synchronised forward, unless it searches for unused ones."""
        can = self.static_graph or not self.find_unused_parameters
        if can and self._ready and not self._is_rebuilt:
            self._fill(_buckets_of(self._ready, self._limits))
            self._is_rebuilt = True
        self._ready = []
        for bucket in self._buckets:
            bucket.left = len(bucket.parameters())

    def _fill(self, contents: Sequence[Sequence[nn.Parameter]]) -> None:
        """Make buckets in the order of their reduction; the old ones go first."""
        self._place.clear()
        self._buckets.clear()
        for index, parameters in enumerate(contents):
            is_last = index == len(contents) - 1
            self._buckets.append(Bucket(index, parameters, is_last=is_last))
        for bucket in self._buckets:
            pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
            self._place |= {parameter: (bucket, view) for parameter, view in pairs}

    @torch.no_grad()
    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if not self._is_synchronised or parameter in self._sparse:
            return
        self._ready.append(parameter)
        bucket, view = self._place[parameter]
        assert parameter.grad is not None, "it was accumulated just now"
        view.copy_(parameter.grad)
        if self._as_views:
            parameter.grad = view
        bucket.left -= 1
        if bucket.left == 0:
            self._reduce(bucket)

    def _reduce(self, bucket: Bucket) -> None:
        if self._hook is None:
            distributed.all_reduce(bucket.buffer())
            return
        state, hook = self._hook
        with _futures_with_values() as sent:
            hook(state, bucket).wait()
        self._under_way = [] if all(one.left == 0 for one in self._buckets) else sent


def _limits(cap_mib: float | None, caps_mib: Sequence[float] | None) -> list[int]:
    """Bytes at which buckets close; the last holds for all that follow."""
    if caps_mib:
        return [int(cap * MIB) for cap in caps_mib]
    if cap_mib is not None:
        return [int(cap_mib * MIB)]
    return [_DEFAULT_FIRST_BUCKET_BYTES, DEFAULT_CAP_MIB * MIB]


def _buckets_of(parameters: Sequence[nn.Parameter], limits: list[int]) -> list[list[nn.Parameter]]:
    """What each bucket holds, by torch's own rule, in the order of the parameters."""
    if not parameters:
        return []
    tensors: list[Tensor] = [*parameters]
    assigned, _ = _compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    return [[parameters[place] for place in places] for places in assigned]


def _sparse_weights(module: nn.Module) -> set[Tensor]:
    """Weights whose gradients are sparse, and reduced as they are, each alone."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return {one.weight for one in module.modules() if isinstance(one, kinds) and one.sparse}


@torch.no_grad()
def _flatten_and_forget(buffers: Sequence[Tensor]) -> None:
    """What ``_broadcast_coalesced`` makes for a moment, for each type."""
    for dtype in {one.dtype for one in buffers}:
        torch.cat([one.flatten() for one in buffers if one.dtype == dtype])


@contextlib.contextmanager
def _futures_with_values() -> Iterator[list[Tensor]]:
    """Hooks go on with what a collective gives, of which the group that carries nothing has none.

    What they send goes into the list.
    """
    sent: list[Tensor] = []

    def carried(tensor: Tensor, *_: Any, **named: Any) -> _Done | None:
        sent.append(tensor)
        return _Done(tensor) if named.get("async_op") else None

    before = [getattr(owner, name) for owner, name in CHAINED]
    try:
        for owner, name in CHAINED:
            setattr(owner, name, carried)
        yield sent
    finally:
        for (owner, name), own in zip(CHAINED, before, strict=True):
            setattr(owner, name, own)


class _Done:
    """Work of a collective that is over."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def get_future(self) -> Future[list[Tensor]]:
        future: Future[list[Tensor]] = Future()
        future.set_result([self._tensor])
        return future

    def wait(self) -> None:
        """Nothing to wait for."""
