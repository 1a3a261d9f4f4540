"""``fully_shard`` (FSDP2): parameters, gradients and optimizer state sharded over the devices.

Each unit's parameters are all-gathered before its forward and backward and freed after them; its
gradients are reduce-scattered. Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded
Data Parallel", 2023; the version with a tensor per parameter came with torch 2.6.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from bench.plan.case import Case, Machine
from bench.strategies.base import AUTOCAST, Context, ModuleSession, Session, Strategy
from bench.strategies.kernels import fused_takes_shards
from workloads.base import Facts, Problem


def check(facts: Facts, case: Case, machine: Machine) -> str | None:
    """Whether the workload's gradients can be sharded."""
    del machine
    if facts.has_sparse_gradients:
        return "FSDP reduces gradients by rows, which sparse ones do not have; use dense ones"
    if case.optimizer_kernels == "fused" and not fused_takes_shards(case.optimizer):
        return (
            f"torch here has no fused {case.optimizer} for sharded tensors; use optimizer_kernels: "
            "foreach or for-loop"
        )
    return None


def flags(case: Case) -> Sequence[str]:
    """What the backend and the number of devices do to its figures."""
    found = []
    if case.world_size == 1:
        found.append("no_sharding")
    elif case.backend == "gloo":
        found.append("fsdp_over_gloo")
    if case.precision in AUTOCAST:
        found.append("fsdp_autocast")
    return found


def prepare(problem: Problem, context: Context) -> Session:
    """Shard each unit, then what is left at the root; then build the optimizer over the shards."""
    # The group as it is: a mesh that makes its own may take another backend (pytorch#132471).
    group = distributed.group.WORLD
    assert group is not None, "every rank has joined it"
    mesh = DeviceMesh.from_group(group, context.device.type)
    model = problem.model
    units = [unit for unit in problem.shard_units(model) if any(True for _ in unit.parameters())]
    sizes = _unit_bytes([*units, model])
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert isinstance(model, FSDPModule), "its class is changed in place"
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor), "every parameter is sharded"
        assert parameter.device.type == context.device.type, "shards stay on the mesh's device"
    return ModuleSession(
        problem=problem,
        context=context,
        module=model,
        optimizer=problem.make_optimizer(model.parameters()),
        unsynchronised=lambda: _unsynchronised(model),
        read_buckets=lambda: sizes,
        whole=_whole,
    )


def _unit_bytes(units: Sequence[nn.Module]) -> list[int]:
    """Bytes of each unit's own parameters, those of units before it left out; no empty ones."""
    taken: set[Tensor] = set()
    sizes: list[int] = []
    for unit in units:
        own = set(unit.parameters()) - taken
        taken |= own
        sizes.append(sum(parameter.nbytes for parameter in own))
    return [size for size in sizes if size > 0]


@contextlib.contextmanager
def _unsynchronised(root: FSDPModule) -> Iterator[None]:
    """Gradients stay whole and local: no reduce-scatter, though parameters are still gathered."""
    root.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        root.set_requires_gradient_sync(True)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


STRATEGIES = (
    Strategy(
        name="fsdp",
        summary="fully_shard (FSDP2): parameters, gradients, optimizer state sharded by unit",
        processes="per_device",
        communicates=True,
        flags=flags,
        check=check,
        prepare=prepare,
    ),
)
