"""One rank of the live check: ``take_part`` runs in a process of its own.

Importing this module needs no torch.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from bench.errors import one_line
from bench.records.store import write_atomically
from bench.run.server import follow_server

if TYPE_CHECKING:  # the process that only reads the reports does without torch
    from torch import Tensor, device

Step = Literal["identity", "channel", "agreement", "done"]
NUMBERS = 8


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks are told."""

    folder: str
    """For reports and what libraries print."""
    world_size: int
    device: str
    backend: str
    variables: dict[str, str]
    """To set before anything can touch a device."""
    timeout_s: float
    """Of the group."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank has found so far; written anew at every step."""

    rank: int
    step: Step
    """It is in."""
    world_size: int = 0
    device: str = ""
    """As the driver names it: a UUID where there is one."""
    carried_by: str = ""
    """Class of the backend."""
    total: tuple[float, ...] = ()
    """What the all-reduce gave."""
    parameters: str = ""
    """Hash of all parameters after one step."""
    failure: str | None = None


def report_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its report."""
    return folder / f"report{rank}.json"


def own_numbers(rank: int) -> list[float]:
    """What a rank adds to the sum: small whole numbers, which add up exactly.

    >>> own_numbers(1)
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    """
    return [float(rank + index) for index in range(NUMBERS)]


def expected_sum(world_size: int) -> list[float]:
    """What they add up to.

    >>> expected_sum(2)[:3]
    [1.0, 3.0, 5.0]
    """
    return [sum(column) for column in zip(*map(own_numbers, range(world_size)), strict=True)]


def all_reduce(tensor: Tensor) -> None:
    """The sum over all ranks, in place."""
    from torch import distributed  # noqa: PLC0415 - see the module docstring

    distributed.all_reduce(tensor)


def take_part(task: Task, rank: int, port: int, reduce: Callable[[Tensor], object]) -> None:
    """Entry of a rank's process, which it never returns from.

    Args:
        task: what all ranks are told.
        rank: this one.
        port: of the store on this host.
        reduce: sums a tensor over all ranks, in place.
    """
    follow_server()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent decides what an interrupt means
    os.environ.update(task.variables)
    folder = Path(task.folder)
    with (folder / f"log{rank}").open("w") as log:  # libraries print to the terminal otherwise
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    report = Report(rank=rank, step="identity")

    def note(**found: object) -> None:
        nonlocal report
        report = msgspec.structs.replace(report, **found)
        write_atomically(report_file(folder, rank), msgspec.json.encode(report))

    code = 0
    try:
        _work(task, rank, port, reduce, note)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must learn of it
        note(failure=one_line(f"{type(error).__name__}: {error}", limit=300))
        code = 1
    # Never through the group's destructor: it would wait for peers that have failed.
    os._exit(code)


def _work(
    task: Task,
    rank: int,
    port: int,
    reduce: Callable[[Tensor], object],
    note: Callable[..., None],
) -> None:
    import torch  # noqa: PLC0415 - see the module docstring
    from torch import distributed  # noqa: PLC0415
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    torch.set_num_threads(1)
    note(step="identity")
    mine = _own_device(task.device, rank)
    note(device=_name(mine), world_size=task.world_size)
    numbers = torch.tensor(own_numbers(rank), device=mine)

    note(step="channel")
    timeout = timedelta(seconds=task.timeout_s)
    store = TCPStore("127.0.0.1", port, task.world_size, False, timeout=timeout)
    distributed.init_process_group(
        task.backend, store=store, rank=rank, world_size=task.world_size, timeout=timeout
    )
    group = distributed.distributed_c10d._get_default_group()
    note(rank=distributed.get_rank(), world_size=distributed.get_world_size())
    note(carried_by=type(group._get_backend(mine)).__name__)
    reduce(numbers)
    total = numbers.tolist()  # waits for the device

    note(step="agreement", total=tuple(total))
    note(parameters=_train_one_step(mine, rank))
    note(step="done")
    distributed.barrier()  # nobody leaves while a peer still needs its last words


def _own_device(kind: str, rank: int) -> device:
    import torch  # noqa: PLC0415 - see the module docstring

    if kind != "cpu":
        torch.accelerator.set_device_index(rank)
        return torch.device(kind, rank)
    return torch.device("cpu")


def _name(mine: device) -> str:
    import torch  # noqa: PLC0415 - see the module docstring

    if mine.type == "cpu":
        return "cpu"
    properties = torch.get_device_module(mine).get_device_properties(mine)
    return f"{mine} {getattr(properties, 'uuid', '')}".strip()


def _train_one_step(mine: device, rank: int) -> str:
    """Parameters after one step of DDP, as a hash: ranks begin apart and see different samples."""
    import torch  # noqa: PLC0415 - see the module docstring
    from torch import nn  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    torch.manual_seed(rank)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(mine)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8, device=mine)).square().mean().backward()
    optimizer.step()
    state = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        state.update(parameter.detach().cpu().numpy().tobytes())
    return state.hexdigest()
