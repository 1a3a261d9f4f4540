"""Loss scaling: what keeps small gradients of fp16 from vanishing, and skips steps that overflow.

Micikevicius et al., "Mixed Precision Training", 2018, as ``torch.amp.GradScaler`` does it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

INITIAL_SCALE = 2.0**16
"""torch's own default."""


class LossScale:
    """A gradient scaler that counts, without a look from the host, the steps that it skips.

    Args:
        scaler: torch's, or another of its interface, such as FSDP's sharded one.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        self._skipped: Tensor | None = None
        self._is_unscaled = False

    def scale(self, loss: Tensor) -> Tensor:
        """What to call backward on."""
        return self._scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Make the gradients what they would be without a scale; once a step at most."""
        if not self._is_unscaled:
            self._scaler.unscale_(optimizer)
            self._is_unscaled = True

    def step(self, optimizer: Optimizer) -> None:
        """Update the parameters unless some gradient is not finite; then adapt the scale.

        The scaler waits for the device to know whether to call the optimizer, unless its kernels
        are fused and can decide for themselves. With those, it would not call its own ``unscale_``,
        in which FSDP's has the ranks agree: each would skip what overflows in its own shard.
        """
        if type(self._scaler) is not GradScaler:
            self.unscale(optimizer)
            found = self._scaler._found_inf_per_device(optimizer)
            # FSDP's have one dimension, which fused optimizers cannot take from their steps' none.
            found.update({device: one.reshape(()) for device, one in found.items()})
        self._scaler.step(optimizer)
        first, *others = self._scaler._found_inf_per_device(optimizer).values()
        for other in others:
            first = first + other.to(first.device, non_blocking=True)
        if self._skipped is None:
            self._skipped = torch.zeros_like(first, dtype=torch.int64)
        self._skipped += first > 0
        self._scaler.update()
        self._is_unscaled = False

    def state(self) -> dict[str, Any]:
        """The scale and how it grows, to be saved. Waits for the device."""
        return self._scaler.state_dict()

    def set(self, state: dict[str, Any]) -> None:
        """Go on with a scale that was saved."""
        self._scaler.load_state_dict(state)

    def skipped(self) -> int:
        """Steps skipped so far. Waits for the device."""
        return 0 if self._skipped is None else int(self._skipped.item())
