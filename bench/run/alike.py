"""What a host says of itself, and what all hosts of a run must have in common."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import plural
from bench.measure.environment import collect, source_digest, versions
from bench.plan.case import Machine
from bench.plan.suite import Suite
from bench.run.channel import HostFacts
from bench.run.rendezvous import HOST_NAME

FREE = frozenset({"python"})
"""Of the versions: may differ from host to host."""


def facts_of(suite: Suite | None, machine: Machine) -> HostFacts:
    """What this host says of itself.

    Args:
        suite: what it is to run; None for collectives alone.
        machine: as a child process found it.
    """
    read = b"" if suite is None else msgspec.json.encode(suite_without_place(suite))
    return HostFacts(
        name=os.environ.get(HOST_NAME) or socket.gethostname(),
        versions=versions(),
        source=source_digest(),
        suite=hashlib.blake2b(read, digest_size=6).hexdigest(),
        machine=machine,
        environment=collect(machine),
    )


def suite_without_place(suite: Suite) -> Suite:
    """A suite as it is on every host, whatever folder its file lies in."""
    return msgspec.structs.replace(suite, source=Path(suite.source).name)


def differences(own: HostFacts, other: HostFacts) -> list[str]:
    """What two hosts must have in common and have not, in words."""

    def count(facts: HostFacts) -> str:
        machine = facts.machine
        if machine.accelerator is None:
            return plural(len(machine.cores), "core")
        return plural(len(machine.devices), f"{machine.accelerator} device")

    pairs: dict[str, tuple[str, str]] = {
        f"{name} ": (own.versions.get(name, "none"), other.versions.get(name, "none"))
        for name in {**own.versions, **other.versions}
        if name not in FREE
    }
    pairs |= {
        "this package's code ": (own.source, other.source),
        "the suite ": (own.suite, other.suite),
        "": (count(own), count(other)),
        "backends ": (" ".join(own.machine.backends), " ".join(other.machine.backends)),
    }
    return [
        f"{what}{ours} on {own.name}, {theirs} on {other.name}"
        for what, (ours, theirs) in pairs.items()
        if ours != theirs
    ]


def unlike_devices(facts: Sequence[HostFacts]) -> bool:
    """Whether hosts that may run together compute on devices of several kinds."""
    kinds = {
        str((one.environment.get("cpu"), [device.name for device in one.machine.devices]))
        for one in facts
    }
    return len(kinds) > 1


def described(facts: Sequence[HostFacts]) -> list[Mapping[str, Any]]:
    """Each host as ``run.json`` has it."""
    return [{"name": one.name, **one.environment} for one in facts]
