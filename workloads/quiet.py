"""A model without chance: what a proof trains twice must not draw its own masks.

Dropout, and whatever else a model draws in forward, would make the same training on one device and
on several end in other numbers. Figures are measured with all of it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from workloads.base import Batch

META = torch.device("meta")
PROBABILITIES = frozenset({"p", "dropout_p", "dropout"})
"""Arguments of torch's operators that say how much is left out."""
WORDS = ("drop", "stochasticdepth")
"""Parts of the names of classes that leave something out at random."""


class RandomOperators(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types there
    """Notes which operators draw random numbers while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # likewise
        self.found: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See ``TorchDispatchMode``."""
        del types
        named = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags and _leaves_out(func, args, named):
            self.found.append(str(func))
        return func(*args, **named)


def _leaves_out(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a random operator draws anything: not where it leaves out nothing."""
    arguments = func._schema.arguments
    given = {one.name: one.default_value for one in arguments if one.has_default_value()}
    given |= dict(zip((one.name for one in arguments), args, strict=False)) | dict(named)
    asked = [one.name for one in arguments if one.name in PROBABILITIES]
    return not asked or any(given[name] for name in asked)


def quieten(
    model: nn.Module, loss: Callable[[Any, Batch], Tensor], batch: Callable[[], Batch]
) -> None:
    """Have a model draw nothing at random any more, in place.

    First modules whose class is there for it; where the model still draws, all modules but norms go
    to ``eval()``, which is what functional dropout asks for.

    Args:
        model: in training mode.
        loss: of it.
        batch: makes one to try it with, on any device.

    Raises:
        ValueError: it draws random numbers in either mode.
    """
    for module in model.modules():
        name = type(module).__name__.lower()
        if any(word in name for word in WORDS) and not any(True for _ in module.parameters()):
            module.eval()
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    if not drawn(model, loss, batch):
        return
    for module in model.modules():
        if not isinstance(module, _NormBase):
            module.training = False
    left = drawn(model, loss, batch)
    if left:
        raise ValueError(
            f"the model draws random numbers in every forward ({left[0]}), so that no two ways of "
            "training end in the same numbers, and none can be proved: draw them where "
            "self.training is true only"
        )


def drawn(
    model: nn.Module, loss: Callable[[Any, Batch], Tensor], batch: Callable[[], Batch]
) -> list[str]:
    """The random operators of a forward, tried without content; none where that cannot be."""
    with contextlib.suppress(Exception):  # a model that cannot be copied, or looks at its content
        tried = copy.deepcopy(model).to(META)
        inputs, targets = batch()
        given = Batch(tuple(one.to(META) for one in inputs), targets.to(META))
        with RandomOperators() as operators:
            loss(tried(*given.inputs), given)
        return list(operators.found)
    return []
