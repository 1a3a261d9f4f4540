"""The session that most strategies share: a wrapped module, its optimizer, and what they hold."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.profiler import record_function

from bench.measure.precision import AUTOCAST
from bench.measure.ranges import device_range, move_range
from bench.strategies.base import Context, Mark
from bench.strategies.loss_scale import LossScale
from bench.strategies.saving import State, put, take
from workloads.base import Batch, Problem


def autocast(context: Context) -> AbstractContextManager[object]:
    """The autocast region that the case's precision asks for; nothing for plain precisions."""
    dtype = AUTOCAST.get(context.precision)
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(context.device.type, dtype=dtype)


def moving(operation: str, tensors: Iterable[Tensor]) -> record_function:
    """A range in which a strategy itself moves tensors between devices: it is communication."""
    return record_function(move_range(operation, local_bytes(tensors)))


def on_device(index: int) -> record_function:
    """A range in which one of several devices works."""
    return record_function(device_range(index))


def is_shard(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which this device holds a part."""
    return hasattr(tensor, "_local_tensor")


def addresses(tensors: Iterable[Any]) -> Iterator[int]:
    """Where the allocations begin that some tensors stand in, as far as this device holds them."""
    for tensor in tensors:
        part = getattr(tensor, "_local_tensor", tensor)
        if not isinstance(part, Tensor):
            continue
        dense = [part._indices(), part._values()] if part.is_sparse else [part]
        yield from (one.untyped_storage().data_ptr() for one in dense)


def local_bytes(tensors: Iterable[Any]) -> int:
    """Bytes that this device holds of some tensors; whatever is no tensor counts nothing."""
    parts = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    return sum(_bytes(part) for part in parts if isinstance(part, Tensor))


def _bytes(tensor: Tensor) -> int:
    if tensor.is_sparse:  # ``indices()`` would want it coalesced
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes


def plain_scaler(context: Context) -> GradScaler:
    """The scaler of torch: right where ranks have whole gradients, or shards that are DTensors."""
    return GradScaler(context.device.type, init_scale=context.initial_scale)


@dataclass(kw_only=True)
class ModuleSession:
    """Session of a wrapped module whose gradients stand in ``parameter.grad``."""

    problem: Problem
    context: Context
    module: nn.Module
    """What forward is called on: the model, or the wrapper around it."""
    optimizer: Optimizer
    unsynchronised: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    """Region in which backward leaves gradients local."""
    read_buckets: Callable[[], list[int] | None] = field(default=lambda: None)
    whole: Callable[[Tensor], Tensor] = field(default=lambda tensor: tensor)
    """What one device would hold of a parameter or gradient. Collective where it is sharded."""
    casts_itself: bool = False
    """Whether the wrapper computes in a narrow type by itself: then there is no autocast."""
    is_sharded: bool = False
    """Whether the model's parameters are DTensors, but for those that are gathered right now."""
    state_keeper: Optimizer | None = None
    """What holds this device's share of the optimizer's state, where that is another object."""
    make_scaler: Callable[[Context], GradScaler] = plain_scaler
    """Called under fp16-amp only; its scaler must skip a step on all ranks or on none."""
    steps_together: bool = False
    """Whether an optimizer step needs synchronised gradients, since it communicates or its share of
    them is made by that. After a micro-step without, gradients are only cleared: a scaler would
    find none, or let some ranks step and others not."""
    drop_unsynchronised: Callable[[], None] = field(default=lambda: None)
    """Clears gradients of such a micro-step that stand where no optimizer sees them."""
    is_synchronised: bool = True
    """Whether the last micro-step was."""

    @functools.cached_property
    def loss_scale(self) -> LossScale | None:
        """Scales the loss where the case's precision asks for it."""
        if self.context.precision != "fp16-amp":
            return None
        return LossScale(self.make_scaler(self.context))

    def backward(self, loss: Tensor) -> None:
        """Backward of this micro-step's share of the optimizer step's loss, scaled if need be."""
        steps = self.context.accumulation_steps
        share = loss / steps if steps > 1 else loss
        if self.loss_scale is not None:
            share = self.loss_scale.scale(share)
        share.backward()  # type: ignore[no-untyped-call]

    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        """See ``Session``."""
        self.is_synchronised = sync
        with contextlib.nullcontext() if sync else self.unsynchronised():
            with contextlib.nullcontext() if self.casts_itself else autocast(self.context):
                loss = self.problem.loss(self.module(*batch.inputs), batch)
            mark("forward")
            self.backward(loss)
            mark("backward")
        return loss.detach()

    def unscale(self) -> None:
        """Make the gradients those of the loss itself; at the latest, the optimizer does."""
        if self.loss_scale is not None:
            self.loss_scale.unscale(self.optimizer)

    def optimizer_step(self) -> None:
        """See ``Session``."""
        if self.steps_together and not self.is_synchronised:
            self.optimizer.zero_grad()
            self.drop_unsynchronised()
            return
        if self.loss_scale is None:
            self.optimizer.step()
        else:
            self.loss_scale.step(self.optimizer)
        self.optimizer.zero_grad()

    def skipped_steps(self) -> int:
        """See ``Session``."""
        return 0 if self.loss_scale is None else self.loss_scale.skipped()

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        for name, parameter in self.problem.model.named_parameters():
            yield name, self.whole(parameter.detach())

    def full_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``; those of the loss without its scale."""
        self.unscale()
        for name, parameter in self.problem.model.named_parameters():
            if parameter.grad is not None:
                yield name, self.whole(parameter.grad)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Session``."""
        yield from self.problem.model.named_buffers()

    def bucket_bytes(self) -> list[int] | None:
        """See ``Session``."""
        return self.read_buckets()

    def held_bytes(self) -> list[dict[str, int]]:
        """See ``Session``."""
        model = self.problem.model
        states = (self.state_keeper or self.optimizer).state.values()
        held = {
            "parameters": local_bytes(model.parameters()),
            "buffers": local_bytes(model.buffers()),
            "optimizer_state": sum(local_bytes(state.values()) for state in states),
        }
        return [held]

    def held_tensors(self) -> dict[str, list[Any]]:
        """What this process knows that it holds right now, by category; later ones win."""
        parameters = list(self.problem.model.parameters())
        states = (self.state_keeper or self.optimizer).state.values()
        return {
            "parameters": parameters,
            "unsharded_parameters": [
                one for one in parameters if self.is_sharded and not is_shard(one)
            ],
            "buffers": list(self.problem.model.buffers()),
            "gradients": [one.grad for one in parameters if one.grad is not None],
            "optimizer_state": [part for state in states for part in state.values()],
        }

    def held_addresses(self) -> dict[int, str]:
        """See ``Session``."""
        held = self.held_tensors()
        return {address: name for name, tensors in held.items() for address in addresses(tensors)}

    def saved_module(self) -> nn.Module:
        """What names and holds the parameters that are saved."""
        return self.problem.model

    def keeps_state(self) -> bool:
        """See ``SavedSession``."""
        return any(map(bool, (self.state_keeper or self.optimizer).state.values()))

    def take_state(self, *, whole: bool, with_optimizer: bool) -> State:
        """See ``SavedSession``."""
        state = take(self.saved_module(), self.optimizer if with_optimizer else None, whole=whole)
        return self.with_loss_scale(state)

    def with_loss_scale(self, state: State) -> State:
        """A training state with the scaler's own, where there are both."""
        if state and self.loss_scale is not None:
            state["loss_scale"] = self.loss_scale.state()
        return state

    def put_state(self, state: State, *, whole: bool) -> None:
        """See ``SavedSession``."""
        put(self.saved_module(), self.optimizer, state, whole=whole)
        self.put_loss_scale(state)

    def put_loss_scale(self, state: State) -> None:
        """Set the scaler's own, where there are both."""
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.set(state["loss_scale"])

    def close(self) -> None:
        """See ``Session``: the wrapper holds the group."""
        self.module = self.problem.model
        self.read_buckets = lambda: None
        self.unsynchronised = contextlib.nullcontext
        self.drop_unsynchronised = lambda: None
