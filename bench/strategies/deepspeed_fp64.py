"""DeepSpeed in fp64, for proofs alone.

It names the type of the gradients that it communicates, of those that it accumulates and of the
weights that it updates, and knows none wider than fp32. So it would train a model in fp64 in fp32,
on other paths than a model in fp32 takes. Here those types are named fp64; nothing else changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

WIDE = torch.float64


@contextlib.contextmanager
def widened(deepspeed: Any, stage: int | None) -> Iterator[Callable[[Any], None]]:
    """A region in which an engine is made that trains in fp64; nothing special for stage None.

    Gives what must be called with the engine. Its own optimizer for stages 1 to 3 refuses wide
    messages as it is made, and takes them afterwards.

    Raises:
        AttributeError: this version of DeepSpeed has other names.
    """
    if stage is None:
        yield lambda _: None
    elif stage == 0:
        yield _communicate_wide
    else:
        from deepspeed.runtime.base_optimizer import ZeROOptimizer  # noqa: PLC0415 - see deepspeed

        with (
            _replaced(deepspeed.DeepSpeedEngine, "get_data_types", lambda _: (WIDE, WIDE)),
            _replaced(ZeROOptimizer, "_configure_master_weights", lambda *_, **__: WIDE),
        ):
            yield _communicate_wide_in_buckets


@contextlib.contextmanager
def _replaced(owner: type, name: str, method: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _communicate_wide(engine: Any) -> None:
    from deepspeed.accelerator import get_accelerator  # noqa: PLC0415 - see deepspeed

    engine.communication_data_type = WIDE
    accelerator = get_accelerator()
    narrow = accelerator.supported_dtypes()
    accelerator.supported_dtypes = lambda: [*narrow, WIDE]


def _communicate_wide_in_buckets(engine: Any) -> None:
    optimizer = engine.optimizer
    (bucket,) = optimizer.ipg_buckets.values()
    optimizer.ipg_buckets = {WIDE: bucket}
    if isinstance(bucket.buffer, torch.Tensor):  # stage 3 has made it, the others will
        bucket.buffer = torch.empty_like(bucket.buffer, dtype=WIDE)
    optimizer.communication_data_type = WIDE
    optimizer.low_precision_master_weights_and_grads = False  # wider ones are none
