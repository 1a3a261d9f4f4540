"""What single operators allocate inside their kernels, and give back before they return.

Operators on tensors without data show their results only. Where the rest can be a model's peak, it
is written here as arithmetic, from the source of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

INDEX_BYTES = 8
"""Of an index, which is a 64-bit number."""


def workspace_bytes(
    operator: str, arguments: tuple[Any, ...], *, device: str, backend: str | None
) -> int:
    """Bytes that an operator needs beyond its arguments and results while it runs.

    Args:
        operator: its full name, such as ``aten::add.Tensor``.
        arguments: positional.
        device: type of the device it would run on.
        backend: that would carry it, if it is a collective.
    """
    name = operator.partition(".")[0]
    if backend == "gloo" and name in GLOO:
        return GLOO[name](arguments)
    if device == "cpu" and name in CPU:
        return CPU[name](arguments)
    return 0


def _cloned_input(arguments: tuple[Any, ...]) -> int:
    """Gloo's reduce-scatter is an all-reduce of a copy of its input (ProcessGroupGloo.cpp)."""
    (source,) = (one for one in arguments[1:2] if isinstance(one, Tensor))
    return source.nbytes


def _bag_backward(arguments: tuple[Any, ...]) -> int:
    """Sorted indices, their order, and the bag of each, beside ``offset2bag`` that is made anew.

    ``_embedding_bag_backward`` in aten/src/ATen/native/EmbeddingBag.cpp makes ``offset2bag``, with
    one number more than there are indices; ``_embedding_bag_dense_backward_cpu`` copies a gradient
    that is not contiguous, sorts the indices, and selects ``offset2bag`` by their order.
    """
    gradient, indices = arguments[:2]
    assert isinstance(gradient, Tensor)
    assert isinstance(indices, Tensor)
    copied = 0 if gradient.is_contiguous() else gradient.nbytes
    return copied + (4 * indices.numel() + 1) * INDEX_BYTES


GLOO: dict[str, Callable[[tuple[Any, ...]], int]] = {"c10d::_reduce_scatter_base_": _cloned_input}
CPU: dict[str, Callable[[tuple[Any, ...]], int]] = {"aten::_embedding_bag_backward": _bag_backward}
