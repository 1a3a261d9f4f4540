"""What the installed torch's optimizer kernels can update."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

FUSED = {"sgd": "_fused_sgd_", "adamw": "_fused_adamw_"}
"""torch's operator behind an optimizer's ``fused=True``."""
REGISTRIES = ("op_strategy_funcs", "op_single_dim_strategy_funcs", "op_to_rules")
"""Where torch keeps how an operator works on sharded tensors."""


def fused_takes_shards(optimizer: str) -> bool:
    """Whether an optimizer's fused kernel takes DTensors, such as FSDP2's parameters.

    Looked up rather than tried: a DTensor needs a process group, which a plan has not.
    """
    operator = getattr(torch.ops.aten, FUSED[optimizer]).default
    propagator = DTensor._op_dispatcher.sharding_propagator
    known = [getattr(propagator, name, {}) for name in REGISTRIES]
    return not any(known) or any(operator in one for one in known)
