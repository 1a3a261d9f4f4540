"""Every classifier of torchvision by its name: ``torchvision:resnet50``, ``torchvision:vit_b_16``.

torchvision is imported where one is named, and not before.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from workloads.base import (
    MAX_PROOF_BATCH,
    Batch,
    Build,
    Facts,
    Family,
    Images,
    Options,
    Preset,
    Problem,
    Workload,
    cycle_of_batches,
    optimizer_factory,
)
from workloads.images import draw_images
from workloads.quiet import META, quieten
from workloads.samples import Drawn, bytes_of_sample
from workloads.tasks import striped_images
from workloads.units import repeated_blocks

AUXILIARY = {"googlenet": 0.3, "inception_v3": 0.4}
"""Weight of each auxiliary output in the loss: Szegedy et al., "Going deeper with convolutions",
2014, and torchvision's own training of Inception v3."""
SMALLEST = {"alexnet": 64, "inception_v3": 299, "maxvit": 224}
"""Smallest image by the beginning of a name, where that is not ``LEAST``; of Inception v3 with its
auxiliary output."""
STEPS = {"vit_b_16": 16, "vit_l_16": 16, "vit_b_32": 32, "vit_l_32": 32, "vit_h_14": 14}
"""Size of a patch, where a network has a fixed number of them: images are whole numbers of it."""
LEAST = 32
FULL = {"inception_v3": 299}
CPU_SIZE, FULL_SIZE = 64, 224


class VisionOptions(Options, frozen=True, kw_only=True):
    """Settings of every ``torchvision:NAME``."""

    image_size: int = FULL_SIZE
    """Height and width in pixels. What a network takes at least is its own: most take 32."""
    num_classes: int = 1000
    """Outputs of the last layer."""
    channels_last: bool = False
    """Store images and weights as NHWC, which tensor cores prefer."""
    auxiliary: bool = True
    """Train the auxiliary outputs of googlenet and inception_v3 too; the others have none."""

    def __post_init__(self) -> None:
        self.require_positive("image_size")
        if self.num_classes < 2:
            raise ValueError("num_classes must be at least 2")


def names() -> list[str]:
    """All classifiers of the torchvision that is installed.

    Raises:
        ImportError: there is none.
    """
    from torchvision import models  # noqa: PLC0415 - see the module docstring

    return list(models.list_models(module=models))


def make_model(name: str, options: VisionOptions) -> nn.Module:
    """The network, with random weights.

    Raises:
        ValueError: it does not take images of that size.
    """
    from torchvision import models  # noqa: PLC0415 - see the module docstring

    require_size(name, options)
    arguments: dict[str, Any] = {}
    if name in AUXILIARY:
        arguments |= {"aux_logits": options.auxiliary, "init_weights": True}
    if name in STEPS:
        arguments["image_size"] = options.image_size
    if name.startswith("maxvit"):
        arguments["input_size"] = (options.image_size, options.image_size)
    model: nn.Module = models.get_model(
        name, weights=None, num_classes=options.num_classes, **arguments
    )
    return model


def require_size(name: str, options: VisionOptions) -> None:
    """Check that a network takes images of a size.

    Raises:
        ValueError: it does not; says which it takes.
    """
    least = smallest(name, auxiliary=options.auxiliary)
    if options.image_size < least:
        raise ValueError(f"image_size must be at least {least} for {name}")
    step = STEPS.get(name, FULL_SIZE if name.startswith("maxvit") else 1)
    if options.image_size % step:
        raise ValueError(f"image_size must be a multiple of {step} for {name}")


def smallest(name: str, *, auxiliary: bool = True) -> int:
    """Height and width of the smallest image that a network takes.

    >>> smallest("resnet50"), smallest("vit_h_14"), smallest("inception_v3")
    (32, 42, 299)
    """
    if name == "inception_v3" and not auxiliary:
        return 75
    least = next((size for part, size in SMALLEST.items() if name.startswith(part)), LEAST)
    step = STEPS.get(name, 1)
    return -(-least // step) * step


def facts(name: str, options: VisionOptions) -> Facts:
    """Images, with batch norm where the network has one."""
    require_size(name, options)
    has_norm, has_units = _seen(name)
    return Facts(
        unit="image",
        has_batch_norm=has_norm,
        has_shard_units=has_units,
        gives_one_tensor=name not in AUXILIARY or not options.auxiliary,
        samples=Images(
            size=options.image_size,
            classes=options.num_classes,
            channels_last=options.channels_last,
        ),
        sample_bytes=bytes_of_sample(draw_images, options),
    )


@functools.cache
def _seen(name: str) -> tuple[bool, bool]:
    """Whether a network has batch norm, and units to shard: the same whatever its options are."""
    size = FULL.get(name, FULL_SIZE)
    options = VisionOptions(image_size=size, num_classes=2)
    with torch.random.fork_rng(devices=[]):
        try:
            with META:
                model = make_model(name, options)
        except (NotImplementedError, RuntimeError):  # it reckons its widths with tensors
            model = make_model(name, options)
    has_norm = any(isinstance(module, _BatchNorm) for module in model.modules())
    return has_norm, bool(repeated_blocks(model))


def build(name: str, options: VisionOptions, build: Build) -> Problem:
    """Model, cross-entropy loss, and random images with random labels."""
    torch.manual_seed(build.seed)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = make_model(name, options)
    model = model.to(device=build.device, dtype=build.dtype, memory_format=layout).train()  # type: ignore[call-overload] # a .pyi without memory_format

    def make(generator: torch.Generator) -> Batch:
        return draw_images(options, build.per_device_batch, generator, build.dtype)

    loss = functools.partial(loss_of, AUXILIARY.get(name, 0.0))
    batches = cycle_of_batches(make, build)
    if build.is_proof:
        quieten(model, loss, lambda: next(batches(0, 1)))
    return Problem(
        model=model,
        make_optimizer=optimizer_factory(
            build.optimizer, lr=0.001, kernels=build.optimizer_kernels
        ),
        loss=loss,
        batches=batches,
        samples=Drawn(draw=draw_images, options=options, seed=build.seed),
        task=striped_images(
            build, size=options.image_size, classes=options.num_classes, layout=layout
        ),
    )


def loss_of(auxiliary: float, output: Any, batch: Batch) -> Tensor:
    """Cross-entropy, with that of each auxiliary output times its weight.

    Args:
        auxiliary: that weight.
        output: logits_NC, or a tuple that begins with them.
        batch: with labels_N.
    """
    if isinstance(output, Tensor):
        return functional.cross_entropy(output, batch.targets)
    first, *others = (functional.cross_entropy(one, batch.targets) for one in output)
    return first + auxiliary * sum(others, start=torch.zeros_like(first))


def for_proof(
    name: str, options: VisionOptions, per_device_batch: int
) -> tuple[VisionOptions, int]:
    """The smallest images; four of them, or batch norm would have too little to average."""
    del per_device_batch
    size = smallest(name, auxiliary=options.auxiliary)
    return msgspec.structs.replace(options, image_size=size), MAX_PROOF_BATCH


def make(name: str) -> Workload:
    """The workload of one network."""
    least, full = smallest(name), FULL.get(name, FULL_SIZE)
    cpu = next(size for size in range(least, 1000) if size >= CPU_SIZE and _fits(name, size))
    return Workload(
        name=f"{FAMILY}:{name}",
        summary=f"torchvision's {name}, cross-entropy on random images",
        options=VisionOptions,
        presets={
            "tiny": _preset(least, 4),
            "cpu": _preset(cpu, 2),
            "full": _preset(full, 64),
        },
        optimizer="sgd",
        facts=functools.partial(facts, name),
        build=functools.partial(build, name),
        for_proof=functools.partial(for_proof, name),
    )


def _fits(name: str, size: int) -> bool:
    try:
        require_size(name, VisionOptions(image_size=size))
    except ValueError:
        return False
    return True


def _preset(size: int, batch: int) -> Preset:
    return Preset(
        options=VisionOptions(image_size=size),
        per_device_batch=batch,
        summary=f"batch {batch} of {size} x {size}",
    )


FAMILY = "torchvision"
FAMILIES = (
    Family(
        name=FAMILY,
        summary="every classifier of torchvision by its name, on random images",
        options=VisionOptions,
        names=names,
        make=make,
    ),
)
