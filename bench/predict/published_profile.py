"""Profiles of devices that were never seen, from one published figure of each.

The optimizer takes the bytes that it must read and write; a third of the rest is forward and two
thirds are backward, which costs twice the multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.errors import BenchError, did_you_mean
from bench.plan.case import Case, Optimizer, Precision
from bench.predict.architectures import Architecture, Layer, layers_of
from bench.predict.catalogue import Catalogue, catalogue
from bench.records.profile import Contention, Gradient, Profile, Unit

WORD = 4
"""Bytes of a parameter and of its gradient: fp32 under mixed precision too."""
OPTIMIZER_WORDS = {"sgd": 5, "adam": 7, "lamb": 13}
"""Read and written for each parameter: parameter, gradient and momentum read, the first and the
last written; a second moment more for Adam; LAMB writes its update, and reads it and the parameter
twice more, for their norms and to apply it."""
FORWARD_SHARE = 1 / 3


class Single(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a published table."""

    model: str
    made: Architecture | None = None
    """How the model is built; None where the catalogue knows it by its name."""
    device: str
    optimizer: str
    step_s: float
    per_device_batch: int
    precision: Precision
    forward_s: float | None = None
    """Where the table has the parts of a step."""
    backward_s: float | None = None
    optimizer_s: float | None = None


def single_of(
    *,
    model: str,
    device: str,
    throughput: float,
    per_device_batch: int,
    optimizer: str = "sgd",
    precision: Precision = "fp32",
    gradient_bytes: int | None = None,
) -> Single:
    """One device by its throughput, in samples a second.

    Args:
        model: of the catalogue; any name where ``gradient_bytes`` are given.
        device: of the catalogue.
        throughput: of one device.
        per_device_batch: of that figure.
        optimizer: for its time.
        precision: for the row.
        gradient_bytes: of a model that the catalogue does not know: taken as equal pieces.

    Raises:
        BenchError: a model or an optimizer that nothing is known of.
    """
    models = catalogue().models
    made = None
    if gradient_bytes is not None:
        made = Architecture(kind="even", unit="sample", parameters=max(gradient_bytes // WORD, 1))
    elif model not in models:
        raise BenchError(
            f"no model {model!r} is known{did_you_mean(model, models)}; of any other, say how many "
            "bytes its gradients have"
        )
    if optimizer not in OPTIMIZER_WORDS:
        raise BenchError(f"no optimizer {optimizer!r}{did_you_mean(optimizer, OPTIMIZER_WORDS)}")
    if not throughput > 0:
        raise BenchError(f"a throughput must be above 0, not {throughput}")
    return Single(
        model=model,
        made=made,
        device=device,
        optimizer=optimizer,
        step_s=per_device_batch / throughput,
        per_device_batch=per_device_batch,
        precision=precision,
    )


def profile_of(single: Single, known: Catalogue) -> Profile:
    """The profile of a device that was never seen, from a published figure of it."""
    made = single.made or known.models[single.model]
    device = known.device(single.device)
    layers = layers_of(made)
    words = sum(sum(layer.parameters) for layer in layers)
    second_bytes = 1 / device.memory_bytes_per_s
    optimizer_s = single.optimizer_s
    if optimizer_s is None:
        optimizer_s = OPTIMIZER_WORDS[single.optimizer] * WORD * words * second_bytes
    # Nothing takes more than the whole step, however small that is.
    optimizer_s = min(optimizer_s, single.step_s / 2)
    left_s = single.step_s - optimizer_s
    forward_s = FORWARD_SHARE * left_s if single.forward_s is None else single.forward_s
    backward_s = left_s - forward_s if single.backward_s is None else single.backward_s
    tables = sum(sum(layer.parameters) for layer in layers if layer.looks_up)
    norms = [layer for layer in layers if layer.normalises]
    return Profile(
        case=_case(single, made),
        source="published",
        unit=made.unit,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        fixed_backward_s=min(WORD * tables * second_bytes, backward_s),
        gradients=_gradients(made, backward_s),
        units=_units(layers, forward_s, backward_s),
        buffers=3 * len(norms),  # mean, variance, and a count of batches
        buffer_bytes=sum(WORD * sum(layer.parameters) + 8 for layer in norms),
        input_bytes=single.per_device_batch * _input_bytes(made),
        output_bytes=single.per_device_batch * WORD * made.classes if norms else 0,
        copy_s_per_byte=2 * second_bytes,
        kernel_s=known.kernel.seconds,
        synchronised_layers=len(norms),
        step_variation=known.variation.deviation,
        contention=Contention(
            stolen_s_per_byte=known.contention.stolen_s_per_byte, source=known.contention.source
        ),
    )


def _input_bytes(made: Architecture) -> int:
    return 3 * made.image**2 * WORD if made.kind == "resnet" else 8 * max(made.length, 2)


def _gradients(made: Architecture, backward_s: float) -> list[Gradient]:
    """In the order in which they become ready: from the last layer to the first."""
    layers = layers_of(made)
    whole = sum(layer.macs for layer in layers) or 1.0
    found: list[Gradient] = []
    last: list[Gradient] = []
    done = 0.0
    for layer in reversed(layers):
        done += layer.macs
        ready_s = backward_s if layer.ready_last else backward_s * min(done / whole, 1.0)
        for number, size in reversed(list(enumerate(layer.parameters))):
            gradient = Gradient(name=f"{layer.name}.{number}", bytes=WORD * size, ready_s=ready_s)
            (last if layer.ready_last else found).append(gradient)
    return [*found, *last]


def _units(layers: Sequence[Layer], forward_s: float, backward_s: float) -> list[Unit]:
    """What FSDP would gather together: blocks, and last what belongs to none."""
    whole = sum(layer.macs for layer in layers) or 1.0
    found = []
    for name in [*dict.fromkeys(layer.unit for layer in layers if layer.unit), ""]:
        own = [layer for layer in layers if layer.unit == name]
        share = sum(layer.macs for layer in own) / whole
        size = WORD * sum(sum(layer.parameters) for layer in own)
        unit = Unit(bytes=size, forward_s=share * forward_s, backward_s=share * backward_s)
        found.append(unit)
    return found


def _case(single: Single, made: Architecture) -> Case:
    optimizer: Optimizer = "sgd" if single.optimizer == "sgd" else "adamw"
    return Case(
        workload=single.model,
        preset="published",
        workload_options={"kind": made.kind},
        strategy="single",
        options={},
        label="single",
        device="cuda",
        backend=None,
        world_size=1,
        precision=single.precision,
        compile="none",
        optimizer=optimizer,
        per_device_batch=single.per_device_batch,
        global_batch=single.per_device_batch,
        scaling="weak",
        accumulation_steps=1,
        cores_per_device=None,
        data="published",
        seed=0,
    )
