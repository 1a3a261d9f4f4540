"""``fully_shard`` (FSDP2): parameters, gradients and optimizer state sharded over the devices.

Each unit's parameters are all-gathered before its forward and backward and freed after them; its
gradients are reduce-scattered. Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded
Data Parallel", 2023; the version with a tensor per parameter came with torch 2.6.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp._fully_shard import _fsdp_state
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from bench.plan.case import Case, Machine, PositiveInt
from bench.strategies import groups, sharding
from bench.strategies.base import Context, Session, Strategy
from bench.strategies.kernels import fused_takes_shards
from bench.strategies.module_session import ModuleSession
from bench.strategies.sharding import Narrow
from workloads.base import Facts, Problem


class FSDPOptions(sharding.ShardingOptions, frozen=True, kw_only=True):
    """Settings of ``fsdp``. A default is not passed to torch at all."""

    reshard_after_forward: bool | PositiveInt | None = None
    """Free a unit's gathered parameters after forward and gather them again in backward. Null is
    torch's rule: all units but the root; true frees the root's, too; a number gathers again within
    groups of as many ranks, for which torch makes groups for every unit. Helps false to save these
    all-gathers, and a number to keep them on one host. Costs false the memory of a whole model, and
    a number that of a part of it."""
    mixed_precision: Narrow | None = None
    """FSDP's own mixed precision, in place of autocast, with ``precision`` of the same type: shards
    stay in fp32, and each unit is gathered and computed in this type. Helps by halving what is
    gathered, and by keeping no second copy of the weights. Costs norms, softmax and loss the digits
    that autocast keeps."""
    cpu_offload: bool = False
    """Keep shards, gradients and optimizer state on the host, where the optimizer runs. On
    accelerators only. Helps models to fit that fit no other way. Costs copies over the bus in every
    step, for which the host waits."""


def check(facts: Facts, case: Case, machine: Machine) -> str | None:
    """Whether the workload can be sharded as the options say."""
    del machine
    if (reason := sharding.check(facts, case)) is not None:
        return reason
    if case.options["cpu_offload"] and case.device == "cpu":
        return (
            "cpu_offload has nothing to do on a CPU, whose memory the parameters are in already; "
            "leave it false"
        )
    if case.optimizer_kernels == "fused" and not fused_takes_shards(case.optimizer):
        return (
            f"torch here has no fused {case.optimizer} for sharded tensors; use optimizer_kernels: "
            "foreach or for-loop"
        )
    return _check_resharding(case)


def _check_resharding(case: Case) -> str | None:
    asked = case.options["reshard_after_forward"]
    if asked is None or isinstance(asked, bool):
        return None
    over = case.options["shard_size"] or case.world_size
    if not 1 < asked < over or over % asked:
        return (
            f"reshard_after_forward {asked} does not split the {over} devices of a model into "
            "several groups of several; use a divisor between the two, or true or false"
        )
    if case.backend == "gloo" and case.device != "cpu":
        return (
            "with a number for reshard_after_forward torch makes groups of its own, which may not "
            "go over gloo; use true or false"
        )
    return None


def group_sizes(case: Case) -> Sequence[int]:
    """Ranks of each kind of group, those that torch makes for resharding included."""
    asked = case.options.get("reshard_after_forward")
    own = [asked] if isinstance(asked, int) and not isinstance(asked, bool) else []
    return [*sharding.group_sizes(case), *own]


def flags(facts: Facts, case: Case) -> list[str]:
    """What must be said of its figures."""
    del facts
    offloaded = ["cpu_offload"] if case.options.get("cpu_offload") else []
    return [*sharding.flags(case), *offloaded]


def prepare(problem: Problem, context: Context) -> Session:
    """Shard each unit, then what is left at the root; then build the optimizer over the shards."""
    options: FSDPOptions = context.options
    model = problem.model
    narrow = sharding.narrow_type(context)
    units = sharding.units_of(problem, options.wrap)
    norms = [] if narrow is None else _batch_norms([*units, model])
    sizes = sharding.own_bytes(
        [*norms, *([unit] for unit in [*units, model])], sharding.whole_bytes(model)
    )
    arguments = _arguments(context)
    for group in norms:
        fully_shard(group, **arguments | {"mp_policy": _wide(narrow)})
    for unit in [*units, model]:
        fully_shard(unit, **arguments)
    assert isinstance(model, FSDPModule), "its class is changed in place"
    if sharding.reduce_type(context) is not None:
        _gather_once(model)
    home = "cpu" if options.cpu_offload else context.device.type
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor), "every parameter is sharded"
        assert parameter.device.type == home, "shards stay on the mesh's device, or on the host"
    session = _OffloadedSession if options.cpu_offload else ModuleSession
    return session(
        problem=problem,
        context=context,
        module=model,
        optimizer=problem.make_optimizer(model.parameters()),
        unsynchronised=lambda: _unsynchronised(model),
        drop_unsynchronised=lambda: _drop_whole_gradients(model),
        read_buckets=lambda: sizes,
        whole=lambda tensor: _whole(tensor, context.device),
        casts_itself=narrow is not None,
        is_sharded=True,
        steps_together=True,  # shards have no gradient before it is scattered to them
    )


def _gather_once(model: nn.Module) -> None:
    """Gather all units before the first step. Collective.

    torch fails to leave the reduction out, where it adds up in a type of its own, for a unit that
    no step has gathered: one that no sample uses.
    """
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.unshard()
            unit.reshard()


def _drop_whole_gradients(model: nn.Module) -> None:
    """Clear what a backward without synchronisation has left, as an optimizer clears the rest.

    It stands in the gathered parameters, which are freed and stay as objects. Kept, the next such
    backward would add to it, which no other step does, and the next reduction would send the sum.
    """
    for unit in model.modules():
        if not isinstance(unit, FSDPModule):
            continue
        state = unit._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        for one in (one for group in groups if group is not None for one in group.fsdp_params):
            one.unsharded_accumulated_grad = None
            if (whole := getattr(one, "_unsharded_param", None)) is not None:
                whole.grad = None


class _OffloadedSession(ModuleSession):
    """Shards and optimizer state are on the host, not on the device."""

    def held_bytes(self) -> list[dict[str, int]]:
        (held,) = super().held_bytes()
        return [dict.fromkeys(held, 0) | {"buffers": held["buffers"]}]


def _arguments(context: Context) -> dict[str, Any]:
    """What each unit is sharded with: what differs from torch's defaults, and the mesh."""
    options: FSDPOptions = context.options
    arguments: dict[str, Any] = {"mesh": _mesh(options, context)}
    if options.reshard_after_forward is not None:
        arguments["reshard_after_forward"] = options.reshard_after_forward
    if (narrow := sharding.narrow_type(context)) is not None:
        arguments["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=narrow, reduce_dtype=sharding.reduce_type(context)
        )
    if options.cpu_offload:  # from pinned memory, where there is a device to copy to
        arguments["offload_policy"] = CPUOffloadPolicy(pin_memory=context.device.type != "cpu")
    return arguments


def _mesh(options: FSDPOptions, context: Context) -> DeviceMesh:
    """All ranks; under hybrid sharding, replicas times shards. Collective.

    Of groups that there are: a mesh that makes its own may take another backend (pytorch#132471).
    """
    device_type = context.device.type
    if options.shard_size is not None:
        return DeviceMesh.from_group(
            list(groups.make_groups(options.shard_size, context.world_size)),
            device_type,
            mesh=groups.ranks_of(options.shard_size, context.world_size),
            mesh_dim_names=("replicate", "shard"),
        )
    group = distributed.group.WORLD
    assert group is not None, "every rank has joined it"
    return DeviceMesh.from_group(group, device_type)


def _batch_norms(units: list[nn.Module]) -> list[list[nn.Module]]:
    """The batch norms of each unit that has any, those of units before it left out.

    Their statistics are buffers, which no policy casts, and a batch norm whose parameters are of
    another type than its statistics is none that torch computes. So they stay in fp32, as FSDP1
    keeps them by itself; those of a unit are gathered at once.
    """
    taken: set[nn.Module] = set()
    found: list[list[nn.Module]] = []
    for unit in units:
        own: list[nn.Module] = [
            part for part in unit.modules() if isinstance(part, _BatchNorm) and part not in taken
        ]
        taken.update(own)
        found += [own] if _casts_for_each() else [[norm] for norm in own]
    return [own for own in found if own]


def _casts_for_each() -> bool:
    """Whether this torch casts what goes into and comes out of each module of a group.

    One that does not casts into the first and out of the last alone, so that what lies between the
    norms of a group would get the wide type.
    """
    register = getattr(_fsdp_state, "_register_group_forward_hooks", None)
    return register is not None and "cast_output_dtype" in inspect.signature(register).parameters


def _wide(narrow: torch.dtype | None) -> MixedPrecisionPolicy:
    """Compute in fp32 between modules that compute in a narrow type."""
    return MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=narrow)


@contextlib.contextmanager
def _unsynchronised(root: FSDPModule) -> Iterator[None]:
    """Gradients stay whole and local: no reduce-scatter, though parameters are still gathered.

    Each micro-step is a whole backward, after which FSDP may forget in which order it prefetched:
    ``set_is_last_backward`` stays as it is. It is for schedules with several backwards at once.
    """
    root.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        root.set_requires_gradient_sync(True)


def _whole(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, since the mesh's groups are of its type; shards may be on the host."""
    if not isinstance(tensor, DTensor):
        return tensor
    moved = tensor.to(device)
    assert isinstance(moved, DTensor)
    return moved.full_tensor()


STRATEGIES = (
    Strategy(
        name="fsdp",
        summary="fully_shard (FSDP2): parameters, gradients, optimizer state sharded by unit",
        processes="per_device",
        communicates=True,
        can_skip_sync=True,
        shards_gradients=True,
        options=FSDPOptions,
        casts=sharding.casts,
        group_sizes=group_sizes,
        saving=sharding.saving,
        wraps=False,
        flags=flags,
        check=check,
        prepare=prepare,
    ),
)
