"""Random pictures, as every workload of pictures draws them."""

from __future__ import annotations

from typing import Protocol

import torch

from workloads.base import Batch


class ImageOptions(Protocol):
    """What pictures are drawn by."""

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""

    @property
    def num_classes(self) -> int:
        """Of which each picture is of one."""

    @property
    def channels_last(self) -> bool:
        """Whether they are stored as NHWC."""


def draw_images(
    options: ImageOptions, count: int, generator: torch.Generator, dtype: torch.dtype
) -> Batch:
    """Random images_NCHW with random labels_N."""
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    images_NCHW = torch.randn(
        (count, 3, options.image_size, options.image_size),
        generator=generator,
        device=generator.device,
        dtype=dtype,
    ).contiguous(memory_format=layout)
    labels_N = torch.randint(
        options.num_classes, (count,), generator=generator, device=generator.device
    )
    return Batch((images_NCHW,), labels_N)
