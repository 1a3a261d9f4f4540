"""Post-local SGD over DDP: plain steps first, then ranks that train apart and average now and then.

Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from bench.strategies.module_session import ModuleSession
from bench.strategies.nature import Exactness, Rhythm

if TYPE_CHECKING:
    from torch.distributed.optim import PostLocalSGDOptimizer
    from torch.optim import Optimizer

EXACTNESS = Exactness(kind="local")


def rhythm(*, start: int, period: int) -> Rhythm:
    """Averages come in the first step after ``start``, and in each ``period``-th from there."""
    return Rhythm(settle_steps=start, period=period)


def in_few_steps(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """One plain step, which can be compared with one device's; then every other step apart."""
    return {**options, "local_sgd_start": 1, "local_sgd_period": 2}


def register(module: DistributedDataParallel, *, start: int) -> None:
    """Give a module the hook that leaves gradients local after so many calls.

    There is one group of all ranks: torch's second level, an all-reduce within each host, would
    make the ranks of one host train as plain DDP does.
    """
    state = PostLocalSGDState(  # type: ignore[no-untyped-call]
        process_group=None,
        subgroup=None,
        start_localSGD_iter=start,
        post_local_gradient_allreduce=False,
    )
    module.register_comm_hook(state, post_localSGD_hook)


def averaging(optimizer: Optimizer, *, start: int, period: int) -> PostLocalSGDOptimizer:
    """The optimizer, with torch's average of all parameters after its steps."""
    from torch.distributed.algorithms.model_averaging.averagers import (  # noqa: PLC0415
        PeriodicModelAverager,
    )
    from torch.distributed.optim import (  # noqa: PLC0415 - takes seconds, for this option alone
        PostLocalSGDOptimizer,
    )

    averager = PeriodicModelAverager(period=period, warmup_steps=start)
    return PostLocalSGDOptimizer(optim=optimizer, averager=averager)


@dataclass(kw_only=True)
class LocalSession(ModuleSession):
    """A session whose synchronisation is the average of the parameters."""

    averaging: PostLocalSGDOptimizer
    """The session's optimizer, under its own type."""

    def optimizer_step(self) -> None:
        """See ``Session``. A step without synchronisation averages nothing, but counts."""
        if self.is_synchronised:
            self.averaging.step()  # type: ignore[no-untyped-call]
        else:
            self.averaging.optim.step()
            self.averaging.averager.step += 1
        self.averaging.zero_grad()
