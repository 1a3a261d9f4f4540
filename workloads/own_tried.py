"""A step of somebody's model on torch's meta device, for what only a step can show."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workloads.base import Batch, Images, Tokens
from workloads.own_batches import batch_of, draw, require_count
from workloads.quiet import META

TRIED = 2
"""Samples: batch norm refuses to average one."""


class Tried(NamedTuple):
    """What a step shows; what most models do, where that cannot be seen."""

    leaves_unused: bool = False
    """Whether backward leaves parameters without a gradient."""
    gives_one_tensor: bool = True
    samples: Images | Tokens | None = None
    sample_bytes: int | None = None
    problem: str | None = None
    """Why it failed, unless for want of content."""


NOT_OURS = tuple(map(Path, {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}))
OURS = Path(__file__).parent


def tried_out(model: nn.Module, loss: Callable[[Any, Tensor], Tensor], batches: Any) -> Tried:
    """Forward, loss and backward without content.

    Args:
        model: goes to the meta device.
        loss: (output, targets) -> scalar.
        batches: draws samples, or is a data set of them.
    """
    model = model.to(META).train()
    batch: Batch | None = None
    try:
        with torch.random.fork_rng(devices=[]):
            batch = batch_of(draw(batches, TRIED, range(TRIED), seed=0), META, torch.float32)
            require_count(batch, TRIED)
            output = model(*batch.inputs)
            loss(output, batch.targets).backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - not every model trains without content
        return Tried(
            sample_bytes=None if batch is None else _bytes(batch) // TRIED,
            problem=None if _wants_content(error) else _told(error),
        )
    return Tried(
        leaves_unused=any(one.grad is None for one in model.parameters() if one.requires_grad),
        gives_one_tensor=isinstance(output, Tensor),
        samples=kind_of(batch, output),
        sample_bytes=_bytes(batch) // TRIED,
    )


def _wants_content(error: Exception) -> bool:
    """Whether a real step may well go where this one has not."""
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def _told(error: Exception) -> str:
    """The exception, with the last line that is neither torch's, nor Python's, nor ours."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not _is_below(Path(one.filename), (*NOT_OURS, OURS))]
    place = f"{Path(own[-1].filename).name}, line {own[-1].lineno}: " if own else ""
    return f"{place}{type(error).__name__}: {error}"


def _is_below(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(one) for one in folders)


def _bytes(batch: Batch) -> int:
    return sum(one.nbytes for one in (*batch.inputs, batch.targets))


def kind_of(batch: Batch, output: Any) -> Images | Tokens | None:
    """What files could stand in for a batch, as shapes and types alone tell.

    Args:
        batch: of inputs and targets.
        output: of the model for it.
    """
    if len(batch.inputs) != 1 or not isinstance(output, Tensor) or output.dim() < 2:
        return None
    (inputs,), targets, classes = batch.inputs, batch.targets, output.shape[-1]
    if targets.is_floating_point():
        return None
    if inputs.is_floating_point():
        is_picture = inputs.dim() == 4 and inputs.shape[1:] == (3, *inputs.shape[2:3] * 2)
        if is_picture and targets.dim() == 1 and output.dim() == 2:
            return Images(size=inputs.shape[2], classes=classes)
        return None
    is_next = inputs.dim() == 2 and inputs.shape == targets.shape and output.dim() == 3
    return Tokens(length=inputs.shape[1], vocabulary=classes) if is_next else None
