"""A place where a strategy's own code trains tensors that have no data, as one of any many ranks.

What torch cannot do there is replaced for the time being, each by the least that keeps memory the
same; see ``fake_world``. All of it is state of the process: predictions run in a child.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.optim import optimizer as torch_optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from bench.plan.case import Case
from bench.predict.memory_ddp import BucketedModule
from bench.strategies import ddp, groups

Given = ParamSpec("Given")
Found = TypeVar("Found")


@contextlib.contextmanager
def fake_world(case: Case, rank: int, processes: int) -> Iterator[None]:
    """Be one rank of a group that carries nothing, on tensors without data.

    Args:
        case: whose device is stood in for.
        rank: of this process.
        processes: of the group.
    """
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=processes)
    try:
        with contextlib.ExitStack() as stack:
            for owner, name, value in _replacements(case):
                stack.enter_context(_replaced(owner, name, value))
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            yield
    finally:
        distributed.destroy_process_group()


def _replacements(case: Case) -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, what stands in for it)."""
    # DDP's reducer is C++ and reads gradients.
    yield ddp, "DistributedDataParallel", BucketedModule
    # A hook that allocates does so by what carries it.
    yield groups, "backend_of", lambda _: case.backend
    # A mesh is a tensor of ranks, whose numbers are read.
    yield DeviceMesh, "__init__", _on_real_tensors(DeviceMesh.__init__)
    yield DeviceMesh, "from_group", staticmethod(_on_real_tensors(DeviceMesh.from_group))
    name = "_get_post_forward_mesh_info"  # cuts a mesh into parts
    yield _fully_shard, name, _on_real_tensors(vars(_fully_shard)[name])
    # A scaler asks whether anything overflowed; a step that is skipped needs no less memory.
    yield torch.amp.GradScaler, "_maybe_opt_step", _step_anyway
    if case.device != "cpu":  # torch's own rule then chooses the optimizer's kernels as there
        name = "_get_foreach_kernels_supported_devices"
        yield torch_optimizer, name, lambda: ["cpu", case.device]


@contextlib.contextmanager
def conversions() -> Iterator[None]:
    """Let modules change their type: torch's own way swaps tensors, which these do not allow.

    A parameter that two modules share stays one.
    """
    made: dict[Tensor, nn.Parameter] = {}

    def convert(module: nn.Module, function: Callable[[Tensor], Tensor], _: bool = True) -> Any:
        for child in module.children():
            convert(child, function)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if parameter not in made:
                    with torch.no_grad():
                        new = function(parameter)
                    is_same = new is parameter
                    made[parameter] = (
                        parameter if is_same else nn.Parameter(new, parameter.requires_grad)
                    )
                module._parameters[name] = made[parameter]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
        return module

    with _replaced(nn.Module, "_apply", convert):
        yield
    made.clear()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    missing = object()
    before = vars(owner).get(name, missing)
    assert before is not missing, f"{owner} has no {name}"
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _on_real_tensors(function: Callable[Given, Found]) -> Callable[Given, Found]:
    @functools.wraps(function)
    def called(*arguments: Given.args, **named: Given.kwargs) -> Found:
        with _disable_current_modes():
            return function(*arguments, **named)

    return called


def _step_anyway(_: Any, optimizer: Any, __: Any, *arguments: Any, **named: Any) -> Any:
    return optimizer.step(*arguments, **named)
