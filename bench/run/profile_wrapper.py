"""What DDP and FSDP themselves cost a device that has nobody to talk to: copies, hooks, buffers."""

from __future__ import annotations

import gc
import statistics

from torch import distributed
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bench.run.group import join_group
from bench.run.loop import Engine, run_block, warm_up, warmup_rule
from bench.run.rank import Rank
from bench.strategies.ddp import NEVER
from bench.strategies.module_session import ModuleSession
from bench.strategies.sharding import units_of

Parts = dict[str, float]
"""Seconds of forward and of backward, of the slowest process."""


def own_group(rank: Rank, backend: str, launch_s: float) -> ProcessGroup:
    """Of this process alone. Collective: every process makes all of them, in the same order.

    To be called last: a process that had no group has one afterwards.

    Args:
        rank: of this process.
        backend: of the group.
        launch_s: how long the launch may take.
    """
    if rank.processes == 1:
        join_group(
            backend,
            rank.device.torch_device,
            launch_s=launch_s,
            group_device=rank.device.group_device,
        )
        whole = distributed.group.WORLD
        assert whole is not None, "it has just been joined"
        return whole
    groups = [distributed.new_group([number]) for number in range(rank.processes)]
    own = groups[rank.rank]
    assert isinstance(own, ProcessGroup)
    return own


def parts_under_ddp(rank: Rank, group: ProcessGroup, steps: int) -> Parts:
    """A step under DDP in a group of this process alone."""
    problem = rank.problem()
    device = rank.device.torch_device
    module = DistributedDataParallel(
        problem.model,
        device_ids=None if device.type == "cpu" else [device.index],
        process_group=group,
    )
    set_rate = getattr(module, "_set_ddp_runtime_logging_sample_rate", None)
    if set_rate is not None:
        set_rate(NEVER)
    session = ModuleSession(
        problem=problem,
        context=rank.context(),
        module=module,
        optimizer=problem.make_optimizer(problem.model.parameters()),
        unsynchronised=module.no_sync,
    )
    return _timed(rank, session, steps)


def parts_under_fsdp(rank: Rank, group: ProcessGroup, steps: int) -> Parts:
    """A step under FSDP2 in a group of this process alone: no collective, but all around it."""
    problem = rank.problem()
    mesh = DeviceMesh.from_group(group, rank.device.torch_device.type)
    for unit in [*units_of(problem, "units"), problem.model]:
        fully_shard(unit, mesh=mesh)
    session = ModuleSession(
        problem=problem,
        context=rank.context(),
        module=problem.model,
        optimizer=problem.make_optimizer(problem.model.parameters()),
        is_sharded=True,
    )
    return _timed(rank, session, steps)


def _timed(rank: Rank, session: ModuleSession, steps: int) -> Parts:
    engine = Engine(
        session=session,
        batches=session.problem.batches(rank.rank, rank.processes),
        clock=rank.device.clock(),
        slowest=rank.slowest,
        accumulation_steps=1,
        after_block=rank.after_block,
    )
    warm_up(engine, warmup_rule(rank.assignment.effort, rank.case.device))
    gc.collect()
    block = run_block(engine, steps)
    found = {
        phase: rank.slowest(statistics.median(block.phase_s[phase]))
        for phase in ("forward", "backward")
    }
    session.close()
    del session, engine
    gc.collect()
    rank.device.synchronize()
    return found
