"""Which collectives are measured, in which sizes, and which cannot be. Never imports torch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import msgspec

from bench.errors import BenchError, did_you_mean
from bench.plan.case import Machine

Operation = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"
]
DType = Literal["fp32", "bf16", "fp16"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
DTYPES: tuple[DType, ...] = get_args(DType)
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
BACKENDS = ("gloo", "nccl", "mpi", "xccl")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZES = tuple(2**power for power in range(10, 31, 2))
"""1 KiB to 1 GiB, each four times the one before."""
BRIEF_SIZES, BRIEF_DTYPES = tuple(2**power for power in range(10, 27, 4)), ("fp32",)
"""Of a sweep that takes two minutes on two cores: 1 KiB to 64 MiB, each 16 times the one before."""
BRIEF = (
    "a brief sweep: 1 KiB to 64 MiB in fp32 on several ranks; --full has 1 KiB to 1 GiB in every"
    " type, and one rank too, and takes far longer"
)
WORLD_SIZES = (1, 2, 4, 8)
MOST_RANKS = 128
"""That a check of their sums can be exact for in bf16."""
COPIES = {"all_to_all": 2.0, "send_recv": 2.0}
"""Buffers of a rank, in sizes of the message; of the others at most one and a share."""
OTHER_COPIES = 2.0
SHARE_OF_MEMORY = 0.5
"""Of the machine's, that buffers may take: gloo and NCCL have some of their own."""
DEVICE_TENSORS = {
    "send_recv": "gloo hands the address of a device's tensor to TCP as it is",
    "reduce_scatter": "gloo has none of device tensors: it sums a copy of the whole on all ranks",
}
"""What gloo does not have, or not really, for tensors of an accelerator."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One size of one operation."""

    op: Operation
    dtype: DType
    bytes: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks that carry out some points, and on what."""

    device: str
    backend: str
    world_size: int
    cores_per_device: int | None
    """On a CPU, the cores that make up one device; None on accelerators."""
    nodes: int = 1
    """Hosts, each with as many of the ranks."""
    link: str | None = None
    """Speed of the links between emulated hosts."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A point of the plan, and why it cannot be measured, if it cannot."""

    group: Group
    point: Point
    skip_reason: str | None = None
    flags: tuple[str, ...] = ()


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for; None for all that there is."""

    operations: Sequence[str] = OPERATIONS
    dtypes: Sequence[str] | None = None
    sizes: Sequence[int] | None = None
    backends: Sequence[str] | None = None
    world_sizes: Sequence[int] | None = None
    device: str = "auto"
    links: Sequence[str | None] = (None,)
    """Of emulated hosts."""
    brief: bool = False
    """Whether what is not asked for is cut short on a CPU."""


def sweep_of(
    *,
    operations: str | None = None,
    sizes: str | None = None,
    dtypes: str | None = None,
    backends: str | None = None,
    world_sizes: str | None = None,
    device: str = "auto",
    full: bool = False,
) -> Sweep:
    """What the options of ``bench comm`` ask for, each a list separated by commas.

    Raises:
        BenchError: one that cannot be read.
    """
    asked: dict[str, Any] = {"device": device, "brief": not full}
    if operations is not None:
        asked["operations"] = parse_names("--operations", operations, OPERATIONS)
    if dtypes is not None:
        asked["dtypes"] = parse_names("--dtypes", dtypes, DTYPES)
    if sizes is not None:
        asked["sizes"] = parse_sizes(sizes)
    if backends not in {None, "all"}:
        asked["backends"] = parse_names("--backends", str(backends), BACKENDS)
    if world_sizes is not None:
        asked["world_sizes"] = parse_counts(world_sizes)
    return Sweep(**asked)


def parse_counts(text: str) -> list[int]:
    """Numbers of ranks in a list.

    Raises:
        BenchError: one that is none.
    """
    words = [part.strip() for part in text.split(",") if part.strip()]
    for word in words:
        if not re.fullmatch(r"[1-9]\d{0,3}", word):
            raise BenchError(f"--world-sizes: {word!r} is no number of ranks")
    if not words:
        raise BenchError("--world-sizes: names nothing; write 2,4")
    return list(dict.fromkeys(map(int, words)))


def parse_sizes(text: str) -> list[int]:
    """Bytes of each size in a list.

    >>> parse_sizes("1KiB, 64MiB,100")
    [1024, 67108864, 100]

    Raises:
        BenchError: what cannot be read, and how it is written.
    """
    found: list[int] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d{1,12})\s*([A-Za-z]*)", word)
        unit = match[2] or "B" if match else ""
        if match is None or unit not in UNITS or not int(match[1]):
            raise BenchError(
                f"--sizes: {word!r} is no size; write 1KiB, 64MiB, 1GiB, or a number of bytes"
            )
        found.append(int(match[1]) * UNITS[unit])
    if not found:
        raise BenchError("--sizes: names nothing; write 1KiB,64MiB")
    return list(dict.fromkeys(found))


def parse_names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Names of a list, each one that is known.

    Raises:
        BenchError: one that is not, and the nearest that is.
    """
    names = list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if name not in known:
            raise BenchError(f"{option}: no {name!r}{did_you_mean(name, known)}")
    if not names:
        raise BenchError(f"{option}: names nothing; known are {', '.join(known)}")
    return names


def plan(sweep: Sweep, machine: Machine) -> list[Planned]:
    """Every point in the order in which it is measured, those that cannot be among them."""
    device = machine.device_type(sweep.device)
    cores = 1 if device == "cpu" else None
    count = machine.device_count(device, cores_per_device=cores or 1)
    backends = sweep.backends or _backends(machine, device)
    if not is_brief(sweep, machine):
        sweep = msgspec.structs.replace(sweep, brief=False)
    places = _places(sweep, max(count, 1), machine.hosts)
    groups = (
        (
            op,
            Group(
                device=device,
                backend=backend,
                world_size=world_size,
                cores_per_device=cores,
                nodes=nodes,
                link=link,
            ),
        )
        for backend, (world_size, nodes, link), op in itertools.product(
            backends, places, sweep.operations
        )
    )
    return [
        Planned(
            group=group,
            point=point,
            skip_reason=_refusal(group, point, machine, count * group.nodes),
            flags=tuple(_flags(group, count * group.nodes, machine)),
        )
        for op, group in groups
        for point in _points(op, sweep, group.world_size)
    ]


def is_brief(sweep: Sweep, machine: Machine) -> bool:
    """Whether a sweep is cut short on a machine: on a CPU, where its sizes or types are left open.

    A GPU moves a gibibyte in milliseconds.
    """
    is_open = sweep.sizes is None or sweep.dtypes is None
    return sweep.brief and is_open and machine.device_type(sweep.device) == "cpu"


def _places(sweep: Sweep, count: int, hosts: int) -> Iterator[tuple[int, int, str | None]]:
    """(ranks, hosts, link): on one host, and over all, so that the two are told apart.

    Args:
        sweep: what is asked for.
        count: devices of one host.
        hosts: of the run.
    """
    most = count * hosts
    known = {size for size in WORLD_SIZES if size <= most} | ({most} if hosts > 1 else set())
    if sweep.brief and len(known) > 1:
        known -= {1}
    sizes = sweep.world_sizes or sorted(known)
    for size in sizes:
        if hosts == 1 or size <= count:
            yield size, 1, None
        if hosts > 1 and size % hosts == 0:
            for link in sweep.links:
                yield size, hosts, link


def _flags(group: Group, available: int, machine: Machine) -> Iterator[str]:
    if group.device == "cpu" and group.world_size > available:
        yield "oversubscribed"
    if group.nodes > 1 and machine.emulated:
        yield "emulated_network"


def _backends(machine: Machine, device: str) -> list[str]:
    """All that this torch has for the device's tensors, and NCCL, whose place says why not."""
    usable = {"cpu": ("gloo", "mpi"), "cuda": ("nccl", "gloo")}.get(device, ("xccl", "gloo"))
    found = [name for name in usable if name in machine.backends]
    return found if "nccl" in found else [*found, "nccl"]


def _points(op: str, sweep: Sweep, ranks: int) -> Iterator[Point]:
    dtypes = sweep.dtypes or (BRIEF_DTYPES if sweep.brief else DTYPES)
    sizes = sweep.sizes or (BRIEF_SIZES if sweep.brief else SIZES)
    for dtype, size in itertools.product(dtypes, sorted(sizes)):
        whole = ITEM_BYTES[dtype] * ranks
        yield msgspec.convert(
            {"op": op, "dtype": dtype, "bytes": max(size // whole, 1) * whole}, Point
        )


def _refusal(group: Group, point: Point, machine: Machine, devices: int) -> str | None:
    """Why a group cannot carry out a point; None where it can."""
    on_cpu = group.device == "cpu"
    if group.backend == "nccl" and group.device != "cuda":
        return "NCCL moves tensors of GPUs, and there is none here"
    if group.backend not in machine.backends:
        return f"this torch was built without {group.backend}"
    if not on_cpu and group.world_size > devices:
        return f"needs {group.world_size} {group.device} devices, found {devices}"
    if group.world_size > MOST_RANKS:
        return f"sums of more than {MOST_RANKS} ranks cannot be checked exactly in bf16"
    if point.op == "send_recv" and group.world_size == 1:
        return "needs two ranks"
    if point.op in DEVICE_TENSORS and not can_send(group):
        return DEVICE_TENSORS[point.op]
    return _too_large(group, point, machine)


def can_send(group: Group) -> bool:
    """Whether ranks of a group can send each other tensors of their devices as they are."""
    return group.device == "cpu" or group.backend != "gloo"


def _too_large(group: Group, point: Point, machine: Machine) -> str | None:
    needed = COPIES.get(point.op, OTHER_COPIES) * point.bytes
    here = group.world_size // (1 if machine.emulated else group.nodes)
    if group.device == "cpu":
        needed *= here
        there = machine.memory_bytes
    else:
        sizes = [one.memory_bytes for one in machine.devices[:here]]
        there = min((size for size in sizes if size is not None), default=0)
    allowed = SHARE_OF_MEMORY * there
    if not there or needed <= allowed:
        return None
    where = "of this machine" if group.device == "cpu" else "of each device"
    return (
        f"needs {needed / 2**30:.1f} GiB for its buffers, more than "
        f"{SHARE_OF_MEMORY:.0%} of the {there / 2**30:.1f} GiB {where}"
    )
