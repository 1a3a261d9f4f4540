"""Steps with marks: when each gradient is there, and where each unit's forward ends."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.measure.clock import LAST_PHASE
from bench.measure.device import Device
from bench.records.profile import Gradient, Unit
from bench.run.loop import Engine, run_block
from bench.strategies.module_session import local_bytes

COPIES = 7
"""Of all tensors, of which the first is left out."""


def marked(
    engine: Engine, model: nn.Module, units: Sequence[nn.Module], steps: int
) -> tuple[list[tuple[str, int, float]], list[float]]:
    """Steps with a mark at each gradient and at the end of each unit's forward.

    Returns:
        (name, bytes, share of backward after which it is there) of each gradient in that order, and
        the share of forward that ends with each unit.
    """
    names = [name for name, one in model.named_parameters() if one.requires_grad]
    tensors = [one for one in model.parameters() if one.requires_grad]
    order: list[int] = []
    handles: list[Any] = []

    def note(number: int) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            order.append(number)
            engine.clock.mark(f"backward.{number}")

        return ready

    def end(number: int) -> Callable[..., None]:
        return lambda *_: engine.clock.mark(f"forward.{number}")

    for number, tensor in enumerate(tensors):
        handle = tensor.register_post_accumulate_grad_hook(note(number))  # type: ignore[no-untyped-call]
        handles.append(handle)
    for number, unit in enumerate(units):
        handles.append(unit.register_forward_hook(end(number)))
    engine.clock.reserve(steps * (len(tensors) + len(units) + 4))
    try:
        run_block(engine, 2)
        order.clear()
        block = run_block(engine, steps)
    finally:
        for handle in handles:
            handle.remove()
    last = order[-(len(order) // steps) :]  # the last step's; DDP, too, keeps one step's order
    shares = cumulated(block.phase_s, "backward", last)
    gradients = [
        (names[one], tensors[one].nbytes, share) for one, share in zip(last, shares, strict=True)
    ]
    return gradients, cumulated(block.phase_s, "forward", range(len(units)))


def cumulated(phase_s: dict[str, list[float]], phase: str, numbers: Sequence[int]) -> list[float]:
    """After which share of a phase each of its marks comes; rising, at most 1."""
    whole = statistics.median(phase_s[phase])
    found: list[float] = []
    done = 0.0
    for number in numbers:
        done += statistics.median(phase_s.get(f"{phase}.{number}", [0.0]))
        found.append(min(done / whole, 1.0) if whole > 0 else 1.0)
    return found


def laid_out(  # noqa: PLR0917 - each known by its name
    units: Sequence[nn.Module],
    model: nn.Module,
    bytes_of: dict[Tensor, int],
    gradients: Sequence[Gradient],
    forward_shares: Sequence[float],
    parts: dict[str, float],
) -> list[Unit]:
    """What FSDP would gather together, in the order of forward; what is left is the root's."""
    names = {id(one): name for name, one in model.named_parameters()}
    ready = {one.name: one.ready_s for one in gradients}
    taken: set[int] = set()
    own: list[list[nn.Parameter]] = []
    for module in [*units, model]:
        parameters = [one for one in module.parameters() if id(one) not in taken]
        taken |= {id(one) for one in parameters}
        own.append(parameters)
    ends = [
        max((ready.get(names[id(one)], 0.0) for one in parameters), default=0.0)
        for parameters in own[:-1]
    ]
    first = min((ready.get(names[id(one)], 0.0) for some in own[:-1] for one in some), default=0.0)
    # What the root has behind all units comes before them: a head, a last norm.
    root_s = [ready.get(names[id(one)], 0.0) for one in own[-1]]
    head_s = max((one for one in root_s if one <= first), default=0.0)
    found: list[Unit] = []
    for number, parameters in enumerate(own[:-1]):
        before = forward_shares[number - 1] if number else 0.0
        # Backward comes to the units from the last to the first.
        begun = ends[number + 1] if number + 1 < len(ends) else head_s
        found.append(
            Unit(
                bytes=sum(bytes_of[one] for one in parameters),
                forward_s=max(forward_shares[number] - before, 0.0) * parts["forward"],
                backward_s=max(ends[number] - begun, 0.0),
            )
        )
    rest = Unit(
        bytes=sum(bytes_of[one] for one in own[-1]),
        forward_s=max(parts["forward"] - sum(one.forward_s for one in found), 0.0),
        backward_s=max(parts["backward"] - sum(one.backward_s for one in found), 0.0),
    )
    return [*found, rest]


def copying(model: nn.Module, device: Device) -> float:
    """Seconds a byte of copying tensors of the model's sizes into one buffer, as DDP does."""
    sources = [one.detach() for one in model.parameters()]
    flat = torch.empty(
        sum(one.numel() for one in sources), dtype=sources[0].dtype, device=sources[0].device
    )
    views: list[tuple[Tensor, Tensor]] = []
    begin = 0
    for one in sources:
        views.append((flat[begin : begin + one.numel()], one.reshape(-1)))
        begin += one.numel()
    clock = device.clock()
    clock.reserve(2 * COPIES)
    clock.start()
    for _ in range(COPIES):
        for target, source in views:
            target.copy_(source)
        clock.mark(LAST_PHASE)
    seconds = clock.stop().step_s
    return statistics.median(seconds[1:]) / max(local_bytes(sources), 1)
