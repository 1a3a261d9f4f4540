"""What a session's training state is when it is saved, and how it is put back.

By name, as one device would hold it or as this rank's shards, so that what one strategy has saved
another can take: ``torch.distributed.checkpoint.state_dict`` names parameters without wrappers.
"""
# ruff: noqa: PLC0415 - most launches save nothing, and need not import what does

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

State = dict[str, Any]
"""``model``: tensors by name. ``optimizer``, where it has any state: that by parameter's name, and
its ``param_groups``. ``loss_scale``, where there is a scaler. Empty on ranks that save nothing."""
EXPECTED = (
    (FutureWarning, "Please use DTensor instead and we are deprecating ShardedTensor"),
    (UserWarning, "`_get_pg_default_device` will be deprecated"),
    (UserWarning, "Multiple backends are registered with this ProcessGroup"),
)
"""What torch warns of while it saves FSDP1's shards, of its own doing."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """How a strategy's training state is saved."""

    form: Literal["whole", "sharded", "none"]
    """``whole``: rank 0 writes all of it, as one device would. ``sharded``: each rank writes what
    it holds, by ``torch.distributed.checkpoint``. ``none``: it is not saved here."""
    reason: str | None = None
    """Why it is not."""


def whole(options: Mapping[str, Any], world_size: int) -> Saving:
    """Of a strategy whose first rank has the whole model."""
    del options, world_size
    return Saving(form="whole")


def take(
    module: nn.Module, optimizer: Optimizer | None, *, whole: bool, offload: bool = True
) -> State:
    """The training state. Collective where the module is sharded.

    It may share memory with the training: it is of this moment until the next step.

    Args:
        module: with the parameters, and the wrapper around them where that shards them.
        optimizer: None for one without state. One that has made none yet makes it.
        whole: as one device would hold it, on the host of rank 0; empty on other ranks. Else what
            this rank holds.
        offload: False leaves a whole state where it is, on all ranks.
    """
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    options = StateDictOptions(full_state_dict=whole, cpu_offload=whole and offload)
    with expected_warnings():
        found: State = {"model": state_dict.get_model_state_dict(module, options=options)}
        if optimizer is not None:
            found["optimizer"] = state_dict.get_optimizer_state_dict(
                module, optimizer, options=options
            )
    return found if found["model"] else {}


def put(module: nn.Module, optimizer: Optimizer | None, state: State, *, whole: bool) -> None:
    """Put back what ``take`` gave. Collective where the module is sharded.

    Args:
        module: as in ``take``.
        optimizer: None for one that takes its state in another way.
        state: all of it on every rank, or this rank's part of it.
        whole: which of the two.
    """
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    strictly = StateDictOptions(full_state_dict=whole)
    # A parameter that no step uses has no state of an optimizer to take.
    loosely = StateDictOptions(full_state_dict=whole, strict=False)
    with expected_warnings():
        state_dict.set_model_state_dict(module, state["model"], options=strictly)
        if optimizer is not None and "optimizer" in state:
            state_dict.set_optimizer_state_dict(
                module, optimizer, state["optimizer"], options=loosely
            )


def by_name(state: Mapping[str, Any], names: list[str]) -> State:
    """An optimizer's ``state_dict`` with its parameters' names for their numbers.

    Args:
        state: of whole parameters.
        names: in the order of its groups' parameters.
    """
    groups = [
        {**group, "params": [names[place] for place in group["params"]]}
        for group in state["param_groups"]
    ]
    return {
        "state": {names[place]: one for place, one in state["state"].items()},
        "param_groups": groups,
    }


def by_number(state: Mapping[str, Any], names: list[str]) -> State:
    """The other way round."""
    places = {name: place for place, name in enumerate(names)}
    groups = [
        {**group, "params": [places[name] for name in group["params"]]}
        for group in state["param_groups"]
    ]
    return {
        "state": {places[name]: dict(one) for name, one in state["state"].items()},
        "param_groups": groups,
    }


@contextlib.contextmanager
def expected_warnings() -> Iterator[None]:
    """Without what torch warns of although it is meant."""
    with warnings.catch_warnings():
        for category, message in EXPECTED:
            warnings.filterwarnings("ignore", message, category)
        yield
