"""The record: one line of ``records.jsonl`` for each case, launch and pass.

History of the schema
    1  first version

Rules: numbers are finite or null; a field that a pass does not measure is null; readers ignore
fields they do not know, so that adding one keeps the schema number.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from bench.plan.case import Case, Compile, CompileScope, Pass
from bench.records.numbers import (
    AtLeastOne,
    Bytes,
    Change,
    Difference,
    Figure,
    Rate,
    Seconds,
    Size,
    Whole,
)
from bench.records.trained import Checkpoint, Training

SCHEMA = 1

Status = Literal["ok", "out_of_memory", "failed", "timeout", "skipped", "interrupted"]
Verdict = Literal["exact", "within_precision", "lossy_by_design", "failed", "not_checked"]

BROKEN_FLAGS = frozenset({"ranks_differ", "duplicate_data"})
"""Seen while timing: the figure is no figure of the strategy."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Raw times in seconds. One entry, or one list, per process."""

    launch_s: Seconds | None
    """From the decision to start until every rank has joined its group."""
    setup_s: list[Seconds]
    """Building the model, its wrapper, the optimizer and the batches."""
    first_step_s: list[Seconds | None]
    """The first step of all; null when there was no warm-up, since then it is in the window."""
    warmup_step_s: list[list[Seconds]]
    """Steps between the first one and the window."""
    step_s: list[list[Seconds]]
    """Every step of the window."""
    block_steps: AtLeastOne
    """Steps between two looks at the clock by all ranks together."""
    window_s: list[Seconds]
    """Sum of the blocks' times, each from a common start to this process's last synchronise."""
    stopped_by: Literal["min_steps", "target_interval", "max_s"]
    """What set the number of steps."""
    minor_faults_per_step: list[Figure | None] | None = None
    """Pages that the system gave a process in a step of the window: memory that an allocator had
    given back, and asks for again."""
    clock_resolution_s: Seconds | None = None
    """Shortest time that the clock of the steps can tell from none."""
    skipped_steps: Whole | None = None
    """Steps of the window without the optimizer's work, since some gradient was not finite: a
    gradient scaler's; the most of any process."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Work done by all devices together."""

    samples_per_s: Rate
    unit: str
    units_per_sample: AtLeastOne


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """What a step computes, and how near to what the devices can do; of a row's first launch."""

    step_flops: Annotated[float, msgspec.Meta(ge=0, le=1e30)] | None
    """Floating-point operations of one optimizer step on all devices together: the model's own
    matrix products, convolutions and attention, a multiplication and an addition as two; what is
    computed again is not counted. Null where torch's counter could not count them."""
    reason: str | None = None
    """Why it could not."""
    matrix_flops_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e30)] | None = None
    """Of one device, in products of large square matrices of the case's precision, right after the
    window while all devices did the same: the slowest one's."""


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each part of a step, on the slowest process.

    The median; where a strategy's steps are not all alike, the mean over whole rounds of them.
    """

    data_s: Seconds
    forward_s: Seconds
    backward_s: Seconds
    optimizer_s: Seconds
    pieces_s: dict[str, Seconds] | None = None
    """Pieces that a strategy marks, such as ``forward.broadcast``: each is part of its phase."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """How samples came that went through a loader. Counts are of all ranks together."""

    samples: Whole
    """In the data set, or the stream: ``trained - padded + dropped``."""
    trained: Whole
    """In an epoch, all of whose batches are full."""
    padded: Whole
    """Of those, that come a second time, so that all ranks have as many."""
    dropped: Whole
    """In no batch of an epoch."""
    epochs: Whole
    """That had begun when the window ended, on the first process."""
    batch_bytes: Bytes
    """Of one process's batch on the host."""
    worker_cores: list[list[Whole]] | None = None
    """Of each process, the cores that its workers were bound to; null without workers, or where
    the system does not tell."""


class MemoryTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """What is alive on the first device while a step goes on."""

    at_s: list[Seconds]
    """Since the profiled steps began."""
    by_category: dict[str, list[Bytes]]
    """As many values of each as there are moments."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks in bytes, one entry per device; null where the figure does not exist."""

    peak_allocated_bytes: list[Bytes | None]
    """Largest total of live tensors: what an accelerator's allocator saw in the timing pass, and on
    a CPU what a profile saw in the memory pass."""
    peak_reserved_bytes: list[Bytes | None]
    """Largest total that the allocator held from the driver."""
    peak_driver_bytes: list[Difference | None]
    """Device-wide use at block ends, less what was used before our processes were there; where
    NVML cannot tell, before the group and the model were, so that the context is left out."""
    peak_process_bytes: list[Bytes | None]
    """Resident memory of the process that drives the device, Python and libraries included."""
    by_category: dict[str, list[Bytes]] | None = None
    """What the peak of live tensors is made of, per device: parameters, buffers, optimizer_state,
    gradients, buckets, unsharded_parameters, unsharded_gradients, activations, communication, data,
    workspace, and unexplained for what could not be told. Without ``held_by_category``, as in files
    written before there was one: what that holds."""
    held_by_category: dict[str, list[Bytes]] | None = None
    """What lives from step to step, per device: parameters, buffers, optimizer_state."""
    timeline: MemoryTimeline | None = None


class CollectiveCost(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that a step communicates with; all figures per step."""

    op: str
    calls: Figure
    payload_bytes: Bytes | None
    """The larger of input and output on one rank, summed over the calls."""
    wire_bytes_minimum: Bytes | None
    """What a rank must send in a ring."""
    busy_s: Seconds
    """Moving bytes, as the quickest rank saw each call: waiting for others left out."""

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Bus bandwidth: what a rank sends in a ring over the time; comparable with a link's rate.

        Of NVIDIA's nccl-tests, doc/PERFORMANCE.md.
        """
        if self.wire_bytes_minimum is None or self.busy_s <= 0:
            return None
        return self.wire_bytes_minimum / self.busy_s


class BatchTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One batch that was tried, in fresh processes."""

    per_device_batch: AtLeastOne
    fits: bool
    peak_bytes: list[Bytes | None]
    """Per device, as far as it came: of the allocator on accelerators, of the whole process on a
    CPU; null where a process could not say."""


class MaxBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch that a device has memory for."""

    per_device_batch: AtLeastOne | None
    """Largest that fits; null where not even the first one did."""
    too_large: AtLeastOne | None
    """Least that does not; null where everything did that was tried."""
    memory_limit_bytes: Bytes | None
    """That each device was given; null for all that it has."""
    trials: list[BatchTrial]
    """In their order."""


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """What communication costs in one step; the three figures of time are never mixed."""

    sync_cost_s: Change | None = None
    """Step with synchronisation minus step without, slowest process: median of the pairs."""
    sync_pairs_s: list[tuple[Seconds, Seconds]] | None = None
    """Seconds of a step with and without synchronisation, measured in turns."""
    bucket_bytes: list[Bytes] | None = None
    """What is communicated at once: DDP's gradient buckets as torch laid them out, in order, or
    the parameters of FSDP's units."""
    collectives: list[CollectiveCost] | None = None
    busy_s: Seconds | None = None
    """Moving bytes, on the rank with the longest ``exposed_s``; in a profiled step."""
    exposed_s: Change | None = None
    """Of that, while nothing is computed."""
    wait_s: Change | None = None
    """For ranks that come late to a collective, on the rank that waits longest."""
    late_rank: Whole | None = None
    """That the others wait for most."""
    late_share: Seconds | None = None
    """Of all waiting, the part that this rank causes."""
    hidden_fraction: Change | None = None
    """Share of ``busy_s`` during which something is computed."""
    profiled_step_s: Seconds | None = None
    """A step while the profile ran, on the slowest rank."""
    standalone_s: Seconds | None = None
    """The step's own collectives alone, one after the other, nothing computed meanwhile: median of
    repeats on the slowest rank. Null where they cannot be told, or go on within a part of the
    ranks."""


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """What ``torch.compile`` made of the model, of all that a pass has trained."""

    mode: Compile
    scope: CompileScope
    graphs: Whole
    """That torch found in the model, recompiled ones included, on the process with the fewest:
    without any, nothing was compiled."""
    parts: Whole
    """That were compiled one by one: a graph within DDP is cut where its buckets end."""
    operations: Whole
    """Calls in all graphs together."""
    uncompiled: Whole
    """Functions that torch tried to compile and runs as they are, those of a wrapper among them; at
    most on any process."""
    over_limit: Whole = 0
    """Functions that have as many compiled versions as torch allows, so that further ones run as
    they are; likewise."""
    breaks: Whole
    """Places at which a graph had to end before its function did, likewise."""
    reasons: dict[str, Whole] | None = None
    """Of breaks and of functions left as they are, with their number; the most frequent."""
    recompiles: Whole
    """Versions of functions beyond the first, before the window; blocks of several shapes have
    several."""
    recompiles_in_window: Whole
    """Times that something was compiled within the window: there should be none."""
    compile_s: list[Seconds]
    """Spent on it before the window, per process."""
    cache_hits: Whole
    """Graphs, forward and backward each, that an earlier launch of the run had compiled already;
    all processes together."""
    cache_misses: Whole
    """Graphs that it had not."""
    cudagraph_skips: Whole
    """Graphs that were to be captured as CUDA graphs and were not, at most on any process."""
    autotuned: Whole
    """Operations whose kernel was chosen by timing several, at least on any process."""
    ddp_mode: str | None = None
    """What torch does about DDP's buckets in a compiled model; null without DDP."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where one process ran."""

    cores: list[Whole]
    """That it was bound to."""
    threads: AtLeastOne
    """Of computation on the host."""
    host: str | None = None
    """Its name, in a run of several."""


class HostConditions(msgspec.Struct, frozen=True, kw_only=True):
    """The host within a window; null where the system does not tell, or the window was short."""

    others_load: Figure | None = None
    """Work of other programs on the cores that the case may use, as a share of them: 0.5 is one of
    two cores. Programs on the other thread of such a core count too."""
    steal: Figure | None = None
    """Share of those CPUs' time that the hypervisor gave to other machines."""
    frequency_hz_mean: Figure | None = None
    """Of the cores, at most eight of them looked at; the lowest and the highest are of the moments'
    means."""
    frequency_hz_min: Figure | None = None
    frequency_hz_max: Figure | None = None
    throttled_s: Seconds | None = None
    """Held back by the container's quota, mean of the CPUs."""


class DeviceConditions(msgspec.Struct, frozen=True, kw_only=True):
    """One device within a window, as NVML tells; null what it does not tell."""

    utilisation: Figure | None = None
    """Share of the time in which some kernel ran."""
    clock_hz_mean: Figure | None = None
    """Of the multiprocessors."""
    clock_hz_min: Figure | None = None
    clock_hz_max: Figure | None = None
    temperature_c_max: Change | None = None
    power_w_mean: Figure | None = None
    energy_j: Figure | None = None
    """By the device's own counter, else mean power over the window."""
    pcie_rx_bytes_per_s: Figure | None = None
    pcie_tx_bytes_per_s: Figure | None = None
    throttled: bool | None = None
    """Whether heat, a power brake or the hardware slowed it down at some moment; that its power is
    capped under load is normal."""
    other_programs: Whole | None = None
    """Processes of others that computed on it: the most at one moment."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What else went on while a window was timed, seen from the parent of the ranks."""

    span_s: Seconds
    """From the first rank's begin to the last one's end, what lies between blocks included."""
    host: HostConditions
    devices: list[DeviceConditions] = []
    """Per device of the case; none where NVML knows nothing of them."""
    energy_per_sample_j: Figure | None = None
    """Of all devices together; the host's own is not known."""


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the strategy trained the same model as one device would."""

    verdict: Verdict
    reason: str | None = None
    """Why it failed, was not checked, or what it could not show."""
    error: Size | None = None
    """fp64: worst relative difference among the losses of all steps, the first gradient and the
    last parameters; of those that are exact by design."""
    tolerance: Size | None = None
    gradient_error: Size | None = None
    """The case's own precision: first gradient of the worst tensor, relative to its reference."""
    gradient_tolerance: Size | None = None
    """What mere reordering of the reference does, times a safety factor: the largest of all
    tensors whose size is not negligible."""
    max_rank_divergence: Size | None = None
    """Largest difference of any parameter between any two ranks after the last step."""
    gradient_deviation: Size | None = None
    """Lossy by design, fp64: relative error of the first gradient that was compressed, all tensors
    as one vector. Null for what is exact, and where ranks have gradients of their own."""
    loss_deviation: Size | None = None
    """Likewise: worst relative difference among the losses after the first inexact step."""
    parameter_deviation: Size | None = None
    """Likewise: of the last parameters, all as one vector, relative to how far training moved
    them."""
    exact_steps: Whole | None = None
    """Steps that such a strategy began with, in which it trained exactly."""
    reference: Literal["micro_batches", "whole_batch", "none"] = "none"
    steps: Whole | None = None
    per_device_batch: Whole | None = None
    """Samples of one micro-step in this pass: the case's, cut down to bound its cost."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Which process had the first fault of its own, and what it was."""

    rank: int | None
    """None where no single rank can be told to be the cause."""
    host: str | None = None
    """Name of the host at fault, in a run of several; null where it cannot be told."""
    phase: str
    step: int | None = None
    """Optimizer steps that it had completed, up to the last block of them."""
    exception: str | None = None
    """Type of the exception."""
    signal: str | None = None
    """Name of the signal that ended the process."""
    exit_code: int | None = None
    """With which the process ended by itself."""
    traceback: list[str] = []
    """Last lines of the exception, or else of what the process wrote."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of one pass of one case, or the reason why there was none."""

    schema: Annotated[int, msgspec.Meta(ge=1)] = SCHEMA
    run_id: str
    launch: Annotated[int, msgspec.Meta(ge=0, le=10**6)]
    pass_: Pass = msgspec.field(name="pass")
    case: Case
    status: Status
    reason: str | None = None
    fault: Fault | None = None
    """The reason, taken apart; null where no process was at fault."""
    retries: list[str] | None = None
    """Why the launch had to be started again before any rank had joined, once for each time."""
    teardown_exit: dict[str, int] | None = None
    """Exit codes of ranks that failed after they had handed their results over."""
    log_tail: dict[str, list[str]] | None = None
    """Last lines that each rank wrote, only where something went wrong."""
    timing: Timing | None = None
    throughput: Throughput | None = None
    phases: Phases | None = None
    input: Input | None = None
    """Of a timing pass whose batches came through a loader."""
    compute: Compute | None = None
    memory: Memory | None = None
    communication: Communication | None = None
    parity: Parity | None = None
    max_batch: MaxBatch | None = None
    checkpoint: Checkpoint | None = None
    training: Training | None = None
    compilation: Compilation | None = None
    """Of any pass; null where nothing was to be compiled."""
    placement: list[Placement] | None = None
    """Per process."""
    hosts: list[str] | None = None
    """Name of the host that each process ran on; null in a case of one host."""
    conditions: Conditions | None = None
    """During the window of a timing pass; on the first host."""
    conditions_elsewhere: list[Conditions] | None = None
    """On the other hosts, in their order."""
    observers: list[str] | None = None
    """What observed or slowed a process of a timing pass on purpose; null where nothing did."""
    flags: list[str] = []
    round: Whole | None = None
    """Of timing: launches of one round were made one after the other, with one fork server."""
    elapsed_s: Seconds | None = None
    """The whole launch, from its decision to the end of its processes."""
    restart_s: Seconds | None = None
    """Of the fork server, before the first launch of a round."""
    environment: str
    """Fingerprint of the environment in ``run.json``."""

    @property
    def key(self) -> tuple[str, int, Pass]:
        """What makes a record unique within a run."""
        return (self.case.id, self.launch, self.pass_)


class RunInfo(msgspec.Struct, kw_only=True):
    """``run.json``: what all records of a run share."""

    schema: Annotated[int, msgspec.Meta(ge=1)] = SCHEMA
    run_id: str
    suite: dict[str, Any]
    """The suite as resolved: name, description, planned cases' ids and efforts."""
    environment: dict[str, Any]
    environment_fingerprint: str
    seed: int
    """Seed of the order in which rounds visit the cases."""
    versions: dict[str, str]
    started_at: str
    """UTC, ISO 8601."""
    ended_at: str | None = None
    ended_by: str | None = None
    """``complete``, or what stopped the run."""
