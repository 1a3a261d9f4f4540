"""What a suite may set for its cases, whatever their strategy.

The text under a field is shown by ``bench list settings``: what it does, then a sentence that
begins with "Helps", then one that begins with "Costs".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from bench.plan.case import (
    AccumulationSync,
    Compile,
    CompileScope,
    Count,
    Effort,
    LearningRate,
    Limits,
    MemoryGib,
    Natural,
    NaturalFloat,
    Optimizer,
    OptimizerKernels,
    PositiveFloat,
    PositiveInt,
    Precision,
    Scaling,
    Window,
)

VARIABLE = "^[A-Z_][A-Z0-9_]*$"
"""Name of an environment variable."""
Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$", max_length=1000)]
Link = Annotated[str, msgspec.Meta(pattern=r"^[1-9]\d{0,5}(kbit|mbit|gbit)$")]
"""A rate as tc writes it: bits a second, in powers of 1000."""
Data = str | dict[str, dict[str, Any]]
"""The name of a source, or a mapping of it to its options."""
Variables = dict[Annotated[str, msgspec.Meta(pattern=VARIABLE, max_length=100)], Text]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``defaults`` and a matrix block may set for their cases. A list is an axis."""

    device: Literal["auto", "accelerator", "cpu", "cuda", "xpu", "mps", "mtia", "hpu"] = "auto"
    """Type of the devices: auto is the accelerator or else the CPU, accelerator never the CPU.
    Helps to run one suite on any machine. Costs nothing; what the machine lacks is a skipped
    row."""
    backend: Literal["auto", "gloo", "nccl", "xccl", "ucc", "mpi"] = "auto"
    """What carries collectives; auto is torch's own choice for the device. Helps to compare two of
    them on one machine. Costs a great deal of time where tensors of an accelerator must go through
    the host, as with gloo."""
    precision: Precision = "fp32"
    """Number format: fp32 has TF32 switched off and tf32 on, -amp computes in 16 bits under
    autocast with weights in fp32, bf16 holds everything in 16 bits. Helps where a device has units
    for the narrower format; gradients of bf16 alone are half as large, too. Costs digits, so that
    it does not train bit for bit the same; on a CPU without such units it is slower."""
    compile: Compile = "none"
    """Mode of ``torch.compile``. Helps where many small operations can be fused, or launching them
    takes as long as they do. Costs minutes before the first step, memory for captured graphs in
    reduce-overhead and max-autotune, and a compiler on the machine."""
    compile_scope: CompileScope = "outside"
    """What is compiled: the wrapper, the model inside it, or each of its shard units. Helps blocks
    to compile fast, as equal ones share their code, and outside to fuse across them. Costs, under
    DDP, a cut of the graph at each bucket, or else the overlap with communication."""
    optimizer: Optimizer | Literal["auto"] = "auto"
    """What updates the parameters; auto is the workload's own. Helps to see the memory of AdamW's
    two moments beside SGD's one. Costs AdamW a second state as large as the parameters; it cannot
    take sparse gradients."""
    optimizer_kernels: OptimizerKernels = "auto"
    """How it goes over the parameters: one by one, several at once, or all in one kernel; auto is
    torch's choice. Helps where a model has many small tensors, most on accelerators. Costs foreach
    a copy as large as the parameters for a moment; fused ones exist for some devices only."""
    activation_checkpointing: bool = False
    """Keep the inputs of each shard unit alone and compute its activations again in backward.
    Helps where activations fill the memory, so that larger batches or models fit. Costs about one
    more forward in each step: a quarter to a third of its time."""
    scaling: Scaling = "weak"
    """What stays equal when devices are added: weak the batch of each, strong that of all. Helps
    to ask the question that is meant: more work, or the same work sooner. Costs strong scaling its
    efficiency, as each device gets less to do."""
    per_device_batch: PositiveInt | None = None
    """Samples of one device in one micro-step, under weak scaling; null is the preset's own.
    Helps, when raised, to hide communication behind more computation. Costs memory for
    activations."""
    global_batch: PositiveInt | None = None
    """Samples of an optimizer step over all devices, under strong scaling, which needs it. Helps
    to keep training the same on any number of devices. Costs devices their work where it is
    small."""
    accumulation_steps: PositiveInt = 1
    """Micro-steps whose gradients make one optimizer step; under weak scaling its batch grows with
    them. Helps where communication or the optimizer takes much of a step, since both come once.
    Costs what a larger batch costs in training, and memory for gradients that FSDP would have
    sharded."""
    accumulation_sync: AccumulationSync = "last"
    """After which micro-steps gradients are synchronised: the last alone, which skips the others'
    communication, or every one. Helps every to keep FSDP's gradients sharded, and to see what
    skipping brings. Costs every one round of communication for each micro-step."""
    env: Variables = {}
    """Environment variables of the processes, which are freshly executed with them; a list of
    values is an axis, null leaves a variable as it is. Helps to try what a library reads at its
    start, such as NCCL_ALGO. Costs seconds for each launch to import torch anew."""
    nodes: PositiveInt | None = None
    """Hosts that the devices are spread over, as many on each; null is the fewest that have them.
    Helps to compare devices of one host with as many of several. Costs the speed of the links
    between them."""
    link: Link | None = None
    """Speed of each host's link, such as 1gbit, between emulated hosts; null leaves it as fast as
    it is. Helps to see at which speed communication binds. Costs nothing beyond what it is to
    show; elsewhere than in the laboratory such cases are skipped."""
    latency_ms: NaturalFloat | None = None
    """Milliseconds that a packet is held back between emulated hosts. Helps to see what distance
    does. Costs nothing beyond that; needs a kernel with netem."""
    data: Data = "device"
    """Where batches come from: a source that bench list data names, or one with its options; a list
    within these is an axis, too. Helps, as device, to time training without an input pipeline, and
    as any other to see whether that keeps up. Costs the time that loading takes; all passes but the
    timed one have their batches from the device."""
    seed: Natural = 0
    """Of parameters and data. Helps to see that a figure does not hang on one draw. Costs the
    comparison: cases of different seeds are not compared."""
    launches: Count = Effort().launches
    """Independent repeats of a case, each in fresh processes. Helps to narrow its interval, which
    is made of what differs between them. Costs the time of a launch each."""
    max_launches: Count = Effort().max_launches
    """As many may become of them while the suite's budget_s lasts. Helps where some cases scatter
    more than others. Costs nothing without a budget_s."""
    launch_interval: PositiveFloat = Effort().launch_interval
    """Half width of a case's interval, relative to its figure, under which it gets no launches
    beyond its own; 0.02 is 2 % either way. Helps to spend the budget where it is needed. Costs the
    more launches the smaller it is, with its square."""
    warmup_steps: Natural | Literal["auto"] = "auto"
    """Optimizer steps before the window; auto is 6 and half a second on a CPU, 12 and two seconds
    elsewhere, where a number is raised to 11: DDP makes the host wait in its first ten. Helps to
    leave out what only the first steps do. Costs their time in each launch."""
    window: Window = Window()
    """How long each launch is timed: min_steps at least; more, up to max_s seconds, to bring the
    interval of the step within target_interval. Helps to steady the figure of a launch. Costs its
    time; beyond what steadies a launch, more launches say more."""
    timeout_s: PositiveFloat = Effort().timeout_s
    """Seconds after which a launch is ended and recorded as a timeout. Helps a run to go on after
    a case that stands still. Costs the figure of a case that is merely slow, if set too short."""
    limits: Limits = Limits()
    """Seconds for each phase of a launch, told apart so that the one at fault can be named. Helps
    to end what stands still sooner than timeout_s does. Costs the figure of a slow phase, if set
    too short."""
    breakdown: bool = True
    """Whether passes of their own follow the timed ones, of communication and of memory; proofs are
    made all the same. Helps to say where time and memory go. Costs two or three launches of each
    case."""
    find_max_batch: bool = False
    """Search the largest batch per device that fits into memory, in a pass of its own. Helps to
    see what sharding is for: more samples, or a larger model. Costs a few launches of each case."""
    memory_limit_gib: MemoryGib | None = None
    """Memory that each device has in that search; null is what there is, on accelerators only.
    Helps to search on a CPU, or for a smaller device. Costs nothing more."""
    checkpoint: bool = False
    """Save and restore the training state in a pass of its own, and prove that training goes on
    from it as if uninterrupted. Helps to see what a checkpoint costs in time and disk. Costs a
    launch of each case, and the disk that its state takes while that lasts."""
    train_steps: Natural = 0
    """Optimizer steps of training from the start on what the workload has to learn, in a launch of
    its own for each of the case's. Helps to see whether faster means faster to the same loss.
    Costs the time of these steps."""
    learning_rate: LearningRate = "fixed"
    """Of that training, when devices are added: fixed is the workload's own, linear that times the
    number of devices. Helps linear to use the larger batches of weak scaling. Costs stability in
    the first steps, where a large rate may diverge."""
