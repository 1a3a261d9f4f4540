"""What passes between the parent and its ranks: what they are told, and what they hand over."""

from __future__ import annotations

from typing import Literal

import msgspec

from bench.measure.allocations import Allocations
from bench.measure.compilation import Compiled
from bench.measure.counters import CoresUse
from bench.measure.flops import Work
from bench.measure.memory import Peaks
from bench.measure.trace import StepsTrace
from bench.plan.case import Case, Effort
from bench.plan.own import Code
from bench.records.collectives import Limit, Pair
from bench.records.record import Conditions, Input, Parity, Placement
from bench.records.trained import Checkpoint, Training

Job = Literal[
    "timing",
    "parity",
    "memory",
    "communication",
    "max_batch",
    "checkpoint",
    "training",
    "reference",
    "strategy",
    "workload",
]
"""A pass, the reference that parity passes compare with, or a look at what somebody has written."""


class TraceWish(msgspec.Struct, frozen=True, kw_only=True):
    """Which traces of its profiled steps a launch is to leave, and where."""

    folder: str
    ranks: tuple[int, ...] | None = None
    """None for all."""
    limit_bytes: int | None = None
    """Of each file."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A host among those of one launch, and where its ranks meet the others'."""

    rank: int
    nodes: int
    address: str
    """Of the launch's store, on node 0."""
    port: int
    interface: str | None = None
    """Of this host, that leads to the others; None where it is not known."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one host is to launch, whatever that is."""

    number: int
    """Of the launch in its run, the same on all hosts."""
    nodes: int
    """Hosts of the launch."""
    processes: int
    """On each of them."""
    meets: bool = True
    """Whether processes of one host meet those of others."""
    ready_s: float
    """For a host to be ready for it."""
    limit_s: float
    """For all of it."""
    link: str | None = None
    """As in a case, and so is the next."""
    latency_ms: float | None = None
    node: Node | None = None
    """Place of this host; None for processes that meet none of another."""

    @property
    def first_rank(self) -> int:
        """Of this host's processes, which all hosts have as many of."""
        return self.node.rank * self.processes if self.node is not None else 0


class CaseShare(Share, frozen=True, kw_only=True, tag="case"):
    """A job of a case."""

    job: Job
    case: Case
    effort: Effort
    launch: int
    trace: TraceWish | None = None
    retries: tuple[str, ...] = ()


class OtherShare(Share, frozen=True, kw_only=True, tag="other"):
    """Something else than a case: only the command that both hosts were given knows what."""

    content: str
    """As JSON."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent tells the processes of one launch, as a file."""

    job: Job
    case: Case
    effort: Effort
    launch: int
    folder: str
    """Private to the launch: outcomes and logs."""
    started_s: float
    """The parent's monotonic clock when it decided to start."""
    cores: tuple[tuple[int, ...], ...]
    """Per device of the case on this host."""
    watched: tuple[int, ...] = ()
    """Cores that any process of the launch may compute on."""
    codes: dict[str, Code] = {}
    """Where the user's own code is that the case names."""
    data_place: str | None = None
    """Where the user's own data are."""
    data_folder: str = ""
    """Of the run on this host, for data that are written for it."""
    environment: dict[str, str]
    """Variables that the process must have before it touches a device."""
    used_before: tuple[int | None, ...] = ()
    """Bytes in use on each device before the launch; empty where the parent cannot tell."""
    reference: str | None = None
    """File of the reference: to compare with, or to write."""
    checkpoint: str | None = None
    """Folder to save to, which is there and empty; None for the launch's own, which goes with
    it."""
    trace: TraceWish | None = None
    retries: tuple[str, ...] = ()
    """Why the launch had to be started again, once for each time."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank has no result."""

    status: Literal["failed", "out_of_memory", "timeout"]
    reason: str
    at_s: float | None = None
    """Monotonic time; None for a process that could not say."""
    exception: str | None = None
    """Type of the exception."""
    signal: str | None = None
    exit_code: int | None = None
    traceback: list[str] = []
    """Last lines of the exception."""
    is_of_launch: bool = False
    """Whether no rank in particular has failed."""
    is_echo: bool = False
    """Whether the process was ended because another one had failed."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a timing pass measures on one process, in seconds."""

    first_step_s: float | None
    warmup_step_s: list[float]
    step_s: list[float]
    phase_s: dict[str, float]
    window_s: float
    block_steps: int
    stopped_by: Literal["min_steps", "target_interval", "max_s"]
    minor_faults: int | None = None
    """Pages that the system gave the process during the window."""
    clock_resolution_s: float | None = None
    began_s: float | None = None
    """Monotonic time before the window, and after it."""
    ended_s: float | None = None
    cpu_s: float | None = None
    """CPU time of all threads of the process between the two."""
    cores_use: CoresUse | None = None
    """Of all watched cores between the two; by the first rank of a host alone."""
    skipped_steps: int | None = None
    """Of the window, that the gradient scaler skipped."""
    allocator_retries: int = 0
    """Of the window: how often the allocator gave back what it held, to find room."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank found out of one collective alone."""

    number: int
    """Of the point."""
    reason: str | None = None
    """Why there is no figure; None where there is one, or another rank knows."""
    out_of_memory: bool = False
    carried_by: str | None = None
    isolated_s: list[float] = []
    """Of every call alone."""
    row_s: list[float] = []
    """Of every row of calls."""
    row_calls: int | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at of somebody's strategy or workload."""

    name: str
    problem: str | None = None
    """What is wrong with it, and the remedy; None where it is right."""


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one process found out."""

    rank: int
    host: str | None = None
    """Name of the host that it ran on; None in a run of one host."""
    phase: str = "start"
    """How far it came: start, set-up, warm-up, window ..., done."""
    failure: Failure | None = None
    joined_s: float | None = None
    """Monotonic time at which every rank had joined."""
    placement: Placement | None = None
    setup_s: float | None = None
    measured: Measured | None = None
    memory: list[Peaks] = []
    """Per device that the process drives."""
    input: Input | None = None
    """What became of the samples, where they came through a loader."""
    held: list[dict[str, int]] = []
    """Likewise: bytes by category that live from step to step."""
    allocations: Allocations | None = None
    trace: StepsTrace | None = None
    trace_problem: str | None = None
    """Why the file of the trace was not written, or does not hold all steps."""
    work: Work | None = None
    """Of the first launch of a timing pass; counted by its first rank."""
    parameter_digest: str | None = None
    batch_digests: list[str] = []
    """Of the first batches this rank trains on."""
    sync_pairs_s: list[tuple[float, float]] | None = None
    alone_s: list[list[float]] = []
    """Of each collective of one round of steps, carried out alone, for each repeat."""
    bucket_bytes: list[int] | None = None
    observers: list[str] = []
    """What observed or slowed the process on purpose while it timed its steps."""
    conditions: Conditions | None = None
    """Of the whole launch, as the parent saw it: with the first rank's outcome."""
    compiled: Compiled | None = None
    """None where nothing was to be compiled."""
    checkpoint: Checkpoint | None = None
    """As this rank saw it; bytes and trips on the first."""
    training: Training | None = None
    """On the first rank."""
    parity: Parity | None = None
    """This rank's own view: every rank compares the gradients that it holds."""
    times: list[Times] = []
    """Of collectives alone, in the order of their points."""
    pairs: list[Pair] = []
    """That this rank has sent to."""
    looks: list[Look] = []
    """At what somebody has written."""
    limits: list[Limit] = []
    """What no collective can pass here."""
    step: int | None = None
    """Optimizer steps completed, up to the last block."""
    loss_is_finite: bool | None = None
    """Of the last step of the window; None without a window."""
    stack: list[str] = []
    """Innermost frames of the main thread, where the process was made to write them."""
    exit_code: int | None = None
    """How the process ended, minus the signal's number if by one; only where that was no 0."""
    log_tail: list[str] = []
