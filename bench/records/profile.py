"""The profile of one device: what a step of a workload costs there, one file of JSON.

Measured by ``bench predict profile``, or made from a published figure; ``bench predict scaling``
builds other numbers of devices from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from bench.errors import RecordsError
from bench.plan.case import Case
from bench.records.numbers import Bytes, Figure, Rate, Seconds, Whole
from bench.records.record import SCHEMA

Factor = Annotated[float, msgspec.Meta(ge=1, le=1000)]


class Gradient(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter's, in a backward on one device without a wrapper."""

    name: str
    bytes: Bytes
    ready_s: Seconds
    """Since backward began."""


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Modules that FSDP gathers together; in the order of forward, the root's rest last."""

    bytes: Bytes
    """Of its own parameters."""
    forward_s: Seconds
    backward_s: Seconds


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """What computation and communication do to each other while both go on."""

    computation: Factor = 1.0
    """Times as long as alone, whatever the collective's rate."""
    collectives: Figure = 1.0
    """Times as long as curves have it, each collective takes among those of a step: gloo carries
    two of DDP's buckets at a time, and curves are of one."""
    stolen_s_per_byte: Figure = 0.0
    """Of the computation, for each byte that a rank puts on the bus: on a CPU, a collective's
    threads share the cores, for the same work at whatever rate bytes come; an accelerator's takes
    as many of its multiprocessors as its links need."""
    most_bus_bytes_per_s: Rate | None = None
    """That a rank puts on the bus while it computes: a slower link is not slowed down by that. None
    for no such limit."""
    source: str
    """``measured``, or where the factor was published."""


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What a wrapper adds to a step on one device, where there is nothing to communicate."""

    forward_s: Seconds
    backward_s: Seconds


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One device at work: medians of a step, the slowest process where several were asked."""

    schema: Annotated[int, msgspec.Meta(ge=1)] = SCHEMA
    case: Case
    """Strategy ``single`` on one device, one micro-step."""
    source: Literal["measured", "published"]
    unit: str
    units_per_sample: Annotated[int, msgspec.Meta(ge=1)] = 1
    data_s: Seconds = 0.0
    forward_s: Seconds
    backward_s: Seconds
    optimizer_s: Seconds
    """Does not depend on the batch."""
    fixed_backward_s: Seconds = 0.0
    """Part of ``backward_s`` that does not depend on the batch either."""
    gradients: list[Gradient]
    """In the order in which they become ready."""
    units: list[Unit] = []
    buffer_bytes: Bytes = 0
    buffers: Whole = 0
    input_bytes: Bytes = 0
    """Of one device's micro-batch, targets included."""
    output_bytes: Bytes = 0
    """Of the model, for one device's micro-batch."""
    copy_s_per_byte: Figure = 0.0
    """Of a gradient that is copied into a bucket, or out of it."""
    kernel_s: Seconds = 0.0
    """The least that any such copy takes."""
    ddp: Added | None = None
    """What DDP adds on this device alone: buffers, each gradient copied into its bucket and out of
    it, hooks. None where it was not measured: ``copy_s_per_byte`` and ``kernel_s`` stand in."""
    fsdp: Added | None = None
    """And FSDP, unit by unit: parameters laid out, gradients copied, hooks. Likewise."""
    synchronised_layers: Whole = 0
    """Batch norms that, synchronised, each wait for a small collective forward and backward."""
    step_variation: Figure = 0.0
    """Standard deviation, over ranks, of what a step's computation takes, as a share of it."""
    contention: Contention | None = None
    """None where it is not known."""
    steps: Whole = 0
    """That were measured."""

    @property
    def gradient_bytes(self) -> int:
        """Of all of them."""
        return sum(one.bytes for one in self.gradients)

    @property
    def step_s(self) -> float:
        """On one device, without a wrapper."""
        return self.data_s + self.forward_s + self.backward_s + self.optimizer_s


def read_profile(path: Path) -> Profile:
    """A profile from its file.

    Raises:
        RecordsError: there is none, or it is none.
    """
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise RecordsError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordsError(f"{path}: is no profile: {error}") from error
    fault = fault_of_profile(profile)
    if fault is not None:
        raise RecordsError(f"{path}: is no profile: {fault}")
    return profile


def fault_of_profile(profile: Profile) -> str | None:
    """Why nothing can be built from it; None where it is sound."""
    ready = [one.ready_s for one in profile.gradients]
    if not ready:
        return "it has no gradients"
    if ready != sorted(ready):
        return "gradients are not in the order in which they become ready"
    if ready[-1] > profile.backward_s * (1 + 1e-9):
        return "a gradient becomes ready after backward has ended"
    if profile.step_s <= 0:
        return "a step takes no time"
    return None
