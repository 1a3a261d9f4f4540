"""The values a plan is made of: a case, the effort spent on it, and the machine it is planned for.

Nothing here imports torch: a plan, a record and a report can be read on any machine.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from typing import Annotated, Any, Literal, Protocol

import msgspec

# Upper bounds are far beyond use: what exceeds them is a mistake, and would only fail later.
PositiveInt = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
NaturalFloat = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
MemoryGib = Annotated[float, msgspec.Meta(ge=0.001, le=1e9)]
"""Less would not hold a single layer, and be a mistake of the unit."""
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
"""Of one optimizer step over all devices."""
MAX_DEPTH = 20
"""Of an option's value, lists and mappings within each other."""

Precision = Literal["fp32", "tf32", "bf16-amp", "fp16-amp", "bf16"]
Compile = Literal["none", "default", "reduce-overhead", "max-autotune"]
CompileScope = Literal["outside", "inside", "blocks"]
Scaling = Literal["weak", "strong"]
Optimizer = Literal["sgd", "adamw"]
OptimizerKernels = Literal["auto", "for-loop", "foreach", "fused"]
AccumulationSync = Literal["last", "every"]
LearningRate = Literal["fixed", "linear"]
UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
"""What an id, which is part of file names, must not contain."""

DEVICE = re.compile(r"con|prn|aux|nul|(com|lpt)\d", re.IGNORECASE)
"""What some systems take for a device, in whatever folder it stands."""

ADDED = (
    "twin",
    "activation_checkpointing",
    "optimizer_kernels",
    "compile_scope",
    "accumulation_sync",
    "env",
    "link",
    "latency_ms",
    "sources",
    "data_options",
    "data_label",
)
"""Fields that a case did not always have: left out of its identity where they have their default,
so that equal cases keep equal ids across versions. They stand behind all others, in this order."""

Pass = Literal["timing", "parity", "memory", "communication", "max_batch", "checkpoint", "training"]


class Placed(Protocol):
    """What is carried out on devices: a case, or collectives alone."""

    @property
    def device(self) -> str:
        """Device type: cpu, cuda, xpu ..."""

    @property
    def backend(self) -> str | None:
        """Carrier of its collectives; None where it has none."""

    @property
    def world_size(self) -> int:
        """Number of devices."""

    @property
    def nodes(self) -> int:
        """Number of hosts that they are spread over, as many on each."""


class Case(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One configuration to measure, with every setting resolved.

    ``global_batch = per_device_batch x world_size x accumulation_steps``, in samples of one
    optimizer step over all devices.
    """

    workload: str
    preset: str
    workload_options: dict[str, Any]
    """All of the workload's settings, defaults included."""
    strategy: str
    options: dict[str, Any]
    """All of the strategy's settings, defaults included."""
    label: str
    """The strategy with the settings that differ from torch's defaults, to be read by people."""
    device: str
    """Device type: cpu, cuda, xpu ..."""
    backend: str | None
    """Carrier of the strategy's collectives; None where it has none."""
    world_size: PositiveInt
    """Number of devices, also for a strategy that drives them from one process."""
    nodes: PositiveInt = 1
    """Number of hosts, each with as many of the devices."""
    precision: Precision
    compile: Compile
    optimizer: Optimizer
    per_device_batch: PositiveInt
    """Samples that one device sees in one micro-step."""
    global_batch: Samples
    scaling: Scaling
    accumulation_steps: PositiveInt
    """Micro-steps of one optimizer step."""
    cores_per_device: PositiveInt | None
    """On a CPU, the cores that make up one device; None on accelerators."""
    data: str
    """Where the batches come from: the name of a source."""
    seed: Natural
    twin: bool = False
    """Whether it repeats an equal case, so that the two show what noise alone does."""
    activation_checkpointing: bool = False
    """Whether each shard unit keeps its inputs only, and computes its activations again in
    backward."""
    optimizer_kernels: OptimizerKernels = "auto"
    """How the optimizer updates: tensor by tensor, several at once, all in one; auto is torch's."""
    compile_scope: CompileScope = "outside"
    """What is compiled: the wrapper, the model within it, or each shard unit of the model. Outside,
    too, where nothing is compiled, or nothing wraps the model."""
    accumulation_sync: AccumulationSync = "last"
    """After which micro-steps gradients are synchronised."""
    env: dict[str, str] = {}
    """Environment variables of its processes, which are freshly executed with them."""
    link: str | None = None
    """Speed of each emulated host's link, such as 1gbit; None where it is whatever it is."""
    latency_ms: NaturalFloat | None = None
    """That its packets are held back on the way from one emulated host to another."""
    sources: dict[str, str] = {}
    """Of the workload and the strategy, as far as they are the user's own: a digest of the source,
    modules that it imports from beside it included. Results of changed code are of another case.
    Likewise of the user's own data, by their path."""
    data_options: dict[str, Any] = {}
    """All of the data source's settings, defaults included; none of batches made on the device."""
    data_label: str = ""
    """The source with the settings that differ from torch's defaults, to be read by people; empty
    for batches made on the device."""
    id: str = ""
    """Readable name plus a hash of all other fields: equal only for equal cases."""

    @property
    def batches_from(self) -> str:
        """The data source, with its settings where it has any."""
        return self.data_label or self.data


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the timed part of one launch is.

    As many steps as bring the 95 % interval of the step time within ``target_interval``, judged by
    the last steps of warm-up; but at least ``min_steps``, and beyond them no longer than ``max_s``.
    """

    min_steps: PositiveInt = 10
    max_s: PositiveFloat = 10.0
    target_interval: PositiveFloat = 0.02
    """Half width of the interval, relative to the mean."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a process may stay in one phase of its launch before the launch is ended.

    For what stands still, and never for what is merely slow: a phase whose length is known
    beforehand may take ``window_factor`` times that, and ``window_s`` more.
    """

    start_s: PositiveFloat = 300.0
    """Until every process has joined its group."""
    set_up_s: PositiveFloat = 600.0
    """Building model, wrapper, optimizer and batches."""
    compile_s: PositiveFloat = 1800.0
    """Steps until no process compiles any more, which each does at its own pace; also what any
    later phase but the window, and the whole launch, may take longer where it may compile."""
    warm_up_s: PositiveFloat = 600.0
    window_factor: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 10.0
    window_s: PositiveFloat = 60.0
    pass_s: PositiveFloat = 600.0
    """Each other phase: a proof, a profile, the check of what a window has left."""


class Effort(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is spent on measuring a case. No part of the case's identity."""

    launches: Count = 3
    """Independent repeats, each in fresh processes."""
    max_launches: Count = 20
    """As many may become of them where the interval is wide and the suite's budget allows."""
    launch_interval: PositiveFloat = 0.02
    """Half width of the 95 % interval over launches, relative to the figure, that is asked for."""
    warmup_steps: Natural | Literal["auto"] = "auto"
    """Optimizer steps before the window; see ``bench.run.loop.warmup_rule`` for auto."""
    window: Window = Window()
    timeout_s: PositiveFloat = 900.0
    """A launch that takes longer is ended and recorded as a timeout; one that compiles may take
    ``limits.compile_s`` more."""
    limits: Limits = Limits()
    """Likewise for each phase of it."""
    breakdown: bool = True
    """Whether passes of their own follow that say where time and memory go."""
    find_max_batch: bool = False
    """Whether the largest batch per device is searched that fits into memory, in a pass of its own
    that is not timed."""
    memory_limit_gib: MemoryGib | None = None
    """Memory that each device has in that search; None for what there is, on accelerators only."""
    checkpoint: bool = False
    """Whether a training state is saved and restored, in a pass of its own."""
    train_steps: Natural = 0
    """Optimizer steps of training from the start, as often as the case is launched; 0 for none."""
    learning_rate: LearningRate = "fixed"
    """Of that training: the workload's own, or that times the number of devices."""


class PlannedCase(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A case of the plan, what to spend on it, and why it will not run, if it will not."""

    case: Case
    effort: Effort
    skip_reason: str | None = None
    flags: tuple[str, ...] = ()
    """What is known beforehand and must be said of its figures."""
    rung_below: str | None = None
    """Id of the case that this one adds a setting to, as a rung of a ladder."""


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator as the driver names it."""

    name: str
    uuid: str | None = None
    visible_as: str
    """Its name in ``CUDA_VISIBLE_DEVICES``, the same under every order of devices."""
    memory_bytes: int | None = None
    has_tf32: bool = False


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan must know of the machine it will run on."""

    cores: tuple[int, ...]
    """Ids of the CPU cores this process may use: affinity, cut to the container's quota."""
    core_speeds: tuple[int, ...] = ()
    """Of each core next to the others, in a unit of the system's own; empty where not known."""
    cpu_flags: tuple[str, ...] = ()
    """Instructions that kernels are chosen by, as Linux names them; empty where not known."""
    accelerator: str | None = None
    """Device type of the accelerators, None without any."""
    devices: tuple[DeviceInfo, ...] = ()
    """In the order in which they are used: those linked best come first."""
    reduces_in_switch: bool = False
    """Whether a switch between them can reduce what passes it."""
    backends: tuple[str, ...] = ("gloo",)
    """Collective backends that the installed torch was built with."""
    default_backends: dict[str, str] = msgspec.field(default_factory=lambda: {"cpu": "gloo"})
    """torch's own choice of backend per device type."""
    cannot_compile: dict[str, str] = {}
    """Per device type, why ``torch.compile`` cannot work there, with the remedy."""
    memory_bytes: int = 0
    shared_memory_bytes: int | None = None
    """Free for what processes share, such as the batches of a loader's workers; None where it is
    not known."""
    hosts: PositiveInt = 1
    """That take part in the run, each with as many devices as this one."""
    unlike_hosts: bool = False
    """Whether their devices are of several kinds."""
    emulated: bool = False
    """Whether they are emulated on one machine, and their links can be set."""

    def device_type(self, asked: str) -> str:
        """The type that a suite's ``device`` stands for here.

        ``auto`` falls back to the CPU; ``accelerator`` does not, and its cases are skipped as those
        of a missing cuda device.
        """
        fallback = {"auto": "cpu", "accelerator": "cuda"}
        return (self.accelerator or fallback[asked]) if asked in fallback else asked

    def device_count(self, device: str, *, cores_per_device: int) -> int:
        """Number of devices of a type; on a CPU, of disjoint sets of ``cores_per_device`` cores."""
        if device == "cpu":
            return len(self.cores) // cores_per_device
        return len(self.devices) if device == self.accelerator else 0


RATE_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bytes_per_s(rate: str) -> float:
    """A link's rate in words, as ``tc`` writes it: in bits, and powers of 1000.

    >>> bytes_per_s("800mbit")
    100000000.0
    """
    number, unit = rate[:-4], rate[-4:]
    return int(number) * RATE_UNITS[unit] / 8


def identify(case: Case) -> Case:
    """The same case, which has none yet, with its ``id`` set.

    The id is safe as a file name, and stable across runs, machines and the order of options.
    """
    payload = _identity(case)
    digest = hashlib.blake2b(payload, digest_size=5).hexdigest()
    parts = [case.workload, case.preset, case.label, f"{case.device}{case.world_size}"]
    parts += [word for applies, word in _unusual(case) if applies]
    return msgspec.structs.replace(case, id=f"{'-'.join(map(_slug, parts))[:80]}-{digest}")


def _unusual(case: Case) -> tuple[tuple[bool, str], ...]:
    """(whether it applies, word) of what an id tells only where it is not as in most cases."""
    return (
        (case.nodes > 1, f"{case.nodes}nodes"),
        (case.precision != "fp32", case.precision),
        (case.compile != "none", case.compile),
        (case.accumulation_steps > 1, f"acc{case.accumulation_steps}"),
        (case.compile != "none" and case.compile_scope != "outside", case.compile_scope),
        (case.activation_checkpointing, "checkpointed"),
        (case.optimizer_kernels != "auto", case.optimizer_kernels),
        (case.accumulation_sync == "every", "sync_every"),
        (bool(case.env), "env"),
        (case.data != "device", case.data),
        (case.link is not None, f"{case.link}"),
        (bool(case.latency_ms), f"{case.latency_ms or 0:g}ms"),
        (case.twin, "twin"),
    )


def original_of(case: Case) -> Case:
    """The case that a twin repeats; any other is its own."""
    return identify(msgspec.structs.replace(case, twin=False, id="")) if case.twin else case


def odd_value(value: Any, depth: int = 0) -> str | None:
    """Why an option's value cannot be written to a record and read again; None where it can."""
    match value:
        case None | bool() | str():
            return None
        case int():
            return None if -(2**63) <= value < 2**63 else "a number of more than 64 bits"
        case float():
            return None if math.isfinite(value) else f"must be a finite number, not {value}"
        case list() | tuple() | dict():
            if depth == MAX_DEPTH:
                return f"is nested more than {MAX_DEPTH} deep"
            parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            return next((odd for part in parts if (odd := odd_value(part, depth + 1))), None)
    return f"a {type(value).__name__} is no option's value"


def _identity(case: Case) -> bytes:
    """All that makes a case what it is, as JSON; fields added later count where they are set."""
    payload = msgspec.json.encode(case, order="deterministic")
    if payload.endswith(ALL_DEFAULT):  # as of most
        return payload[: -len(ALL_DEFAULT)] + NO_ID
    for name in reversed(ADDED):
        value, text = DEFAULTS[name]
        if getattr(case, name) == value:
            # The last such text is the field itself: what follows it holds no such name.
            before, found, after = payload.rpartition(text)
            assert found, f"{name} is a field"
            payload = before + after
    return payload


def _default(field: msgspec.structs.FieldInfo) -> tuple[Any, bytes]:
    """Value, and what it is in a case's JSON."""
    has_factory = field.default is msgspec.NODEFAULT
    value = field.default_factory() if has_factory else field.default
    return value, f',"{field.name}":{msgspec.json.encode(value).decode()}'.encode()


DEFAULTS = {
    field.name: _default(field) for field in msgspec.structs.fields(Case) if field.name in ADDED
}
NO_ID = b',"id":""}'
ALL_DEFAULT = b"".join(DEFAULTS[name][1] for name in ADDED) + NO_ID
"""How the JSON of a case ends that has none of them set, and no id yet."""


def file_name(text: str) -> str:
    """A name given by people as a part of a file's: in one folder, short, and no option or device.

    >>> file_name("../etc/passwd"), file_name(".."), file_name("con")
    ('etc-passwd', 'suite', 'suite-con')
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:80] or "suite"
    return f"suite-{name}" if DEVICE.fullmatch(name) else name


@functools.lru_cache(maxsize=1000)
def _slug(part: str) -> str:
    """What an id may contain; many cases have parts in common."""
    return UNSAFE.sub("_", part)
