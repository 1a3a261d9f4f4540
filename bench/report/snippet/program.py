"""A whole training program for one case: runs as it stands, on a model that stands in for yours."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from bench.plan.case import Case
from bench.report.snippet.model import autocast_type, model
from bench.report.snippet.pieces import Pieces, is_accelerated, safe
from bench.report.snippet.wrappers import pieces_of, plain_optimizer

FILE = "train.py"
LINE = 100
"""Characters of a comment's line."""
STAND_IN = (
    "Model, loss, batches and learning rate stand in for yours; all else is what was measured."
)
TWICE = (
    "Each block is computed twice, so that torch counts each batch twice in the running statistics"
    " of batch norms within it."
)
RATES = {"sgd": "0.001", "adamw": "3e-4"}


def program(case: Case, *, about: str = STAND_IN) -> str:
    """The program's text. Needs torch alone, and DeepSpeed for that strategy.

    Args:
        case: that it carries out.
        about: what in it stands in for what, a sentence.

    Raises:
        NoProgramError: there is none for the case, with the reason.
    """
    pieces = pieces_of(case)
    parts = [
        _docstring(case, pieces, about),
        "\n".join(_imports(case, pieces)),
        "\n".join(_constants(case)),
        *model(case, pieces),
        "\n".join(_prepare(case, pieces)),
        "\n".join(_main(case, pieces)),
        'if __name__ == "__main__":\n    main()',
    ]
    head, body = parts[:3], parts[3:]
    return "\n\n".join(head) + "\n\n\n" + "\n\n\n".join(body) + "\n"


def command(case: Case) -> str:
    """What starts it in a shell, on as many devices as were measured."""
    variables = [f"{safe(name)}={safe(value)}" for name, value in case.env.items()]
    if case.strategy == "deepspeed":  # it would look for a device by itself
        variables.append(f"DS_ACCELERATOR={safe(case.device)}")
    if not _has_ranks(case):
        return " ".join([*variables, f"python {FILE}"])
    if case.nodes > 1:
        on_each = case.world_size // case.nodes
        rest = f"--rdzv-backend c10d --rdzv-endpoint HOST:29500 {FILE}"
        launch = f"torchrun --nnodes {case.nodes} --nproc-per-node {on_each} {rest}"
    else:
        launch = f"torchrun --standalone --nproc-per-node {case.world_size} {FILE}"
    return " ".join([*variables, launch])


def _has_ranks(case: Case) -> bool:
    return case.strategy not in {"single", "dp"}


def _docstring(case: Case, pieces: Pieces, about: str) -> str:
    label = re.sub(r"[^A-Za-z0-9 _.,:=()\[\]-]", "", case.label)
    name = f"{label} on {case.world_size} x {safe(case.device)}, {case.precision}"
    notes = [about, *pieces.notes]
    if case.activation_checkpointing:
        notes.append(TWICE)
    text = textwrap.fill(" ".join(notes), LINE)
    return f'"""{name}.\n\n{text}\n\nStart with:\n\n    {command(case)}\n"""'


def _imports(case: Case, pieces: Pieces) -> Iterator[str]:
    if _leaves_out(case) and pieces.region:
        yield "import contextlib"
    if _has_ranks(case):
        yield "import os"
    yield ""
    yield "import torch"
    yield "from torch import distributed, nn" if _has_ranks(case) else "from torch import nn"
    lines = [one for one in pieces.imports if one.startswith("from torch")]
    if case.activation_checkpointing:
        lines.append("from torch.utils.checkpoint import checkpoint")
    yield from sorted(lines)
    yield from (one for one in pieces.imports if one not in lines)


def _constants(case: Case) -> Iterator[str]:
    yield f"DEVICES = {case.world_size}"
    yield f"PER_DEVICE_BATCH = {case.per_device_batch}"
    yield f"MICRO_STEPS = {case.accumulation_steps}  # of one optimizer step"
    yield f"LEARNING_RATE = {RATES[case.optimizer]}  # yours"
    if case.optimizer == "sgd":
        yield "MOMENTUM = 0.9  # yours"
    if case.options.get("mixed_precision") is not None and case.strategy == "fsdp":
        yield "BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)"


def _compile(case: Case, name: str) -> str:
    mode = "" if case.compile == "default" else f'mode="{case.compile}"'
    return f"{name}.compile({mode})"


def _prepare(case: Case, pieces: Pieces) -> Iterator[str]:
    arguments = "model, device, local_rank" if _has_ranks(case) else "model, device"
    yield f"def prepare({arguments}):"
    yield '    """What forward is called on, and the optimizer."""'
    lines: list[str] = []
    if case.compile != "none" and case.compile_scope == "inside":
        lines.append(_compile(case, "model"))
    if case.compile != "none" and case.compile_scope == "blocks":
        lines += ["for block in model.blocks:", f"    {_compile(case, 'block')}"]
    lines += pieces.wrap
    lines += pieces.optimizer or plain_optimizer(case)
    if case.compile != "none" and case.compile_scope == "outside":
        lines.append(_compile(case, "module"))
    lines.append("return module, optimizer")
    yield from _indented(lines)


def _main(case: Case, pieces: Pieces) -> Iterator[str]:
    yield "def main(steps=100):"
    yield from _indented([*_start(case), *_loop(case, pieces), *_end(case)])


def _start(case: Case) -> Iterator[str]:
    if is_accelerated(case):
        high = case.precision == "tf32"
        yield f'torch.set_float32_matmul_precision("{"high" if high else "highest"}")'
        if case.device == "cuda":
            yield f"torch.backends.cudnn.allow_tf32 = {high}"
    else:
        yield f"torch.set_num_threads({case.cores_per_device or 1})"
    if _has_ranks(case):
        yield 'local_rank = int(os.environ["LOCAL_RANK"])'
        if is_accelerated(case):
            yield f'device = torch.device("{safe(case.device)}", local_rank)'
            yield "torch.accelerator.set_device_index(local_rank)"
        else:
            yield 'device = torch.device("cpu")'
        yield f'distributed.init_process_group("{safe(case.backend or "gloo")}")'
        yield "rank = distributed.get_rank()"
        yield "assert distributed.get_world_size() == DEVICES"
    else:
        yield f'device = torch.device("{case.device}"{", 0" if is_accelerated(case) else ""})'
        yield "rank = 0"
    yield f"torch.manual_seed({case.seed})"
    dtype = ", dtype=torch.bfloat16" if case.precision == "bf16" else ""
    yield f"model = Model().to(device{dtype})"
    yield f"module, optimizer = prepare(model, device{', local_rank' if _has_ranks(case) else ''})"
    yield "stream = batches(rank, device)"


def _end(case: Case) -> Iterator[str]:
    if _has_ranks(case):
        yield "distributed.destroy_process_group()"
    yield "return module"


def _loop(case: Case, pieces: Pieces) -> Iterator[str]:
    if pieces.owns_step:
        yield from _engine_loop(case)
        return
    scales = case.precision == "fp16-amp"
    if scales:
        yield f"scaler = {pieces.scaler}"
    yield "for step in range(steps):"
    yield from _indented(_micro_steps(case, pieces, scales=scales))
    if scales:
        unscale = ["scaler.unscale_(optimizer)"] if pieces.unscales else []
        yield from _indented([*unscale, "scaler.step(optimizer)", "scaler.update()"])
    else:
        yield "    optimizer.step()"
    yield "    optimizer.zero_grad()"
    yield from _indented(_told())


def _told() -> Iterator[str]:
    yield "if rank == 0:"
    yield '    print(f"step {step}: loss {loss.item():.4f} of this rank\'s samples")'


def _leaves_out(case: Case) -> bool:
    """Whether some micro-steps do not synchronise."""
    return case.accumulation_steps > 1 and case.accumulation_sync == "last"


def _micro_steps(case: Case, pieces: Pieces, *, scales: bool) -> Iterator[str]:
    yield "for micro_step in range(MICRO_STEPS):"
    lines = ["inputs, targets = next(stream)"]
    forward = ["loss = loss_of(module(inputs), targets)"]
    if case.precision.endswith("-amp") and not pieces.casts_itself and not pieces.casts_within:
        cast = f"with torch.autocast(device.type, dtype={autocast_type(case)}):"
        forward = [cast, *_indented(forward)]
    share = "loss / MICRO_STEPS" if case.accumulation_steps > 1 else "loss"
    scaled = f"scaler.scale({share})" if scales else share
    forward.append(f"{f'({scaled})' if ' / ' in scaled and not scales else scaled}.backward()")
    if _leaves_out(case) and (pieces.region or pieces.switch):
        last = "micro_step == MICRO_STEPS - 1"
        if case.options.get("static_graph"):  # torch fails unless its first backward does
            last += " or step == micro_step == 0"
        lines.append(f"synchronises = {last}")
        if pieces.switch:
            lines.append(pieces.switch)
        else:
            lines.append(f"with contextlib.nullcontext() if synchronises else {pieces.region}:")
            forward = list(_indented(forward))
    yield from _indented([*lines, *forward])


def _engine_loop(case: Case) -> Iterator[str]:
    """DeepSpeed divides the loss, and knows the last micro-step, by itself."""
    loss = "loss = loss_of(module(inputs), targets)"
    yield "for step in range(steps):"
    yield "    for micro_step in range(MICRO_STEPS):"
    yield "        inputs, targets = next(stream)"
    if case.precision == "bf16-amp":
        yield "        outputs = module(inputs)"
        yield "        with torch.autocast(device.type, dtype=torch.bfloat16):"
        yield "            loss = loss_of(outputs, targets)"
    else:
        yield f"        {loss}"
    yield "        module.backward(loss)"
    yield "        module.step()"
    yield from _indented(_told())


def _indented(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield from (f"    {line}" if line else "" for line in lines)
