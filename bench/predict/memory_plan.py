"""What is asked for on the command line -> cases, on devices that need not be here.

The words are a suite's: they go through its reader and its planner, which know every setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bench.errors import BenchError
from bench.plan.case import DeviceInfo, Machine, PlannedCase
from bench.plan.document import read_document
from bench.plan.matrix import expand
from bench.plan.suite import Suite, load_suite, parse_suite

ENTRY = re.compile(r"\s*([\w.:]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
SETTING = re.compile(r"\b(\w+)\s*=\s*")
OPEN, SHUT = "([{", ")]}"
SOURCE = "bench predict memory"
LOCAL = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


def strategy_entries(text: str) -> list[Any]:
    """Strategies as a suite names them, from a list with commas.

    >>> strategy_entries("single, ddp(bucket_cap_mb=1, static_graph=true)")
    ['single', {'ddp': {'bucket_cap_mb': 1, 'static_graph': True}}]

    Raises:
        BenchError: one of them cannot be read.
    """
    return [_entry(part) for part in _split(text)]


def workload_entry(text: str) -> Any:
    """A workload as a suite names it, its options in brackets.

    >>> workload_entry("transformer:xl"), workload_entry("transformer(layers=24)")
    ('transformer:xl', {'transformer': {'layers': 24}})

    Raises:
        BenchError: it cannot be read.
    """
    return _entry(text, "WORKLOAD", "transformer:xl or transformer(layers=24)")


def _entry(text: str, option: str = "--strategies", example: str = "ddp(bucket_cap_mb=1)") -> Any:
    match = ENTRY.fullmatch(text)
    if match is None:
        raise BenchError(f"{option}: {text.strip()!r} is no name with settings; write {example}")
    name, inside = match.groups()
    if inside is None:
        return name
    mapping = SETTING.sub(r"\1: ", inside)
    return {name: read_document(f"{{{mapping}}}", f"{option}: {name}")}


def _split(text: str) -> Iterator[str]:
    """Parts between commas that stand in no bracket."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in OPEN) - (letter in SHUT)
        if letter == "," and depth == 0:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def suite_of(workload: str, strategies: str, world_sizes: Sequence[int], **settings: Any) -> Suite:
    """The suite that a command line describes.

    Args:
        workload: as a suite names it, or with its options in brackets.
        strategies: see ``strategy_entries``.
        world_sizes: numbers of devices.
        settings: of all cases; None leaves one out.

    Raises:
        BenchError: something of it is no suite's word.
    """
    block = {
        "workloads": [workload_entry(workload)],
        "strategies": strategy_entries(strategies),
        "world_sizes": list(world_sizes),
        **{name: value for name, value in settings.items() if value is not None},
    }
    text = msgspec.json.encode({"name": "prediction", "matrix": [block]}).decode()
    return parse_suite(text, source=SOURCE)


def planned_cases(suite: str | Suite, device: str) -> tuple[PlannedCase, ...]:
    """The cases of a suite on as many devices of a type as it asks for; twins left out.

    Raises:
        BenchError: there is no such suite, or it asks for what exists nowhere.
    """
    described = load_suite(suite) if isinstance(suite, str) else suite
    most = max(size for block in described.blocks for size in block.world_sizes)
    planned = expand(described, imagined(device, most * described.cores_per_device))
    return tuple(one for one in planned if not one.case.twin)


def imagined(device: str, count: int) -> Machine:
    """A machine with so many cores, and with so many accelerators unless it is a CPU's."""
    devices = [
        DeviceInfo(name="imagined", visible_as=str(index), has_tf32=True) for index in range(count)
    ]
    is_cpu = device == "cpu"
    return Machine(
        cores=tuple(range(count)),
        accelerator=None if is_cpu else device,
        devices=() if is_cpu else tuple(devices),
        backends=tuple(LOCAL.values()),
        default_backends=LOCAL,
    )
