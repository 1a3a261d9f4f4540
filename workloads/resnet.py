"""ResNet-152 on images: many small convolutions, 60 million parameters, batch norm.

He et al., "Deep Residual Learning for Image Recognition", 2015, as torchvision builds it.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.base import (
    MAX_PROOF_BATCH,
    Batch,
    Build,
    Facts,
    Images,
    Options,
    Preset,
    Problem,
    Workload,
    cycle_of_batches,
    optimizer_factory,
)
from workloads.images import draw_images
from workloads.samples import Drawn, bytes_of_sample
from workloads.tasks import striped_images


class ResNetOptions(Options, frozen=True, kw_only=True):
    """Settings of ``resnet152``."""

    image_size: int = 224
    """Height and width in pixels; at least 32."""
    num_classes: int = 1000
    """Outputs of the last layer."""
    channels_last: bool = False
    """Store images and weights as NHWC, which tensor cores prefer."""

    def __post_init__(self) -> None:
        if self.image_size < 32:
            raise ValueError("image_size must be at least 32, the network's total stride")
        if self.num_classes < 2:
            raise ValueError("num_classes must be at least 2")


def facts(options: ResNetOptions) -> Facts:
    """Images, with batch norm in every block."""
    return Facts(
        unit="image",
        has_batch_norm=True,
        samples=Images(
            size=options.image_size,
            classes=options.num_classes,
            channels_last=options.channels_last,
        ),
        sample_bytes=bytes_of_sample(draw_images, options),
    )


def build(options: ResNetOptions, build: Build) -> Problem:
    """Model, cross-entropy loss, and random images with random labels."""
    from torchvision.models import resnet152  # noqa: PLC0415 - planning needs no model

    torch.manual_seed(build.seed)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model: nn.Module = resnet152(num_classes=options.num_classes)
    model = model.to(device=build.device, dtype=build.dtype, memory_format=layout).train()  # type: ignore[call-overload] # a .pyi without memory_format

    def make(generator: torch.Generator) -> Batch:
        return draw_images(options, build.per_device_batch, generator, build.dtype)

    return Problem(
        model=model,
        make_optimizer=optimizer_factory(
            build.optimizer, lr=0.001, kernels=build.optimizer_kernels
        ),
        loss=_loss,
        batches=cycle_of_batches(make, build),
        shard_units=_blocks,
        samples=Drawn(draw=draw_images, options=options, seed=build.seed),
        task=striped_images(
            build, size=options.image_size, classes=options.num_classes, layout=layout
        ),
    )


def for_proof(options: ResNetOptions, per_device_batch: int) -> tuple[ResNetOptions, int]:
    """The smallest images; fewer than four of them would leave batch norm too little to average."""
    del per_device_batch
    return msgspec.structs.replace(options, image_size=32), MAX_PROOF_BATCH


def _loss(logits_NC: Tensor, batch: Batch) -> Tensor:
    return functional.cross_entropy(logits_NC, batch.targets)


def _blocks(model: nn.Module) -> list[nn.Module]:
    return [
        block
        for name, stage in model.named_children()
        if name.startswith("layer")
        for block in stage.children()
    ]


WORKLOADS = (
    Workload(
        name="resnet152",
        summary="torchvision's ResNet-152, cross-entropy on random images",
        options=ResNetOptions,
        presets={
            "tiny": Preset(
                options=ResNetOptions(image_size=32),
                per_device_batch=4,
                summary="batch 4 of 32 x 32: the whole network on the smallest image it takes",
            ),
            "cpu": Preset(
                options=ResNetOptions(image_size=64),
                per_device_batch=2,
                summary="batch 2 of 64 x 64: about a third of a second a step on one core",
            ),
            "full": Preset(
                options=ResNetOptions(image_size=224),
                per_device_batch=64,
                summary="batch 64 of 224 x 224, as articles on scaling use it",
            ),
        },
        optimizer="sgd",
        facts=facts,
        build=build,
        for_proof=for_proof,
    ),
)
