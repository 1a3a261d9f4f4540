"""Pictures from files: JPEGs that are read, decoded, cropped and flipped as in training.

An ``ImageFolder`` of torchvision, with the transforms of its own reference training of classifiers
(references/classification/presets.py, ``ClassificationPresetTrain``), version 2. torchvision is
imported where it is needed, and not before.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from workloads.base import Batch, Facts, Images, shard_seed
from workloads.data.base import Asked, Found, Opened, SampledOptions, Source
from workloads.data.files import written_once

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's colours, as torchvision's presets have them."""
HEIGHT, WIDTH = 375, 500
"""Of most of ImageNet's pictures."""
QUALITY = 90
"""Of JPEG, out of 100: with the noise below, about 100 kB a picture, as ImageNet has."""
COARSE, NOISE = 24, 0.08
"""Points across a picture between which colours go over, and the noise on top, of 1."""
MOST_CLASSES = 10
LEAST_WRITTEN, BATCHES_WRITTEN = 256, 4
"""Pictures that are written: these at least, or so many batches of all devices."""


class FolderOptions(SampledOptions, frozen=True, kw_only=True):
    """Settings of ``folder``."""

    path: str | None = None
    """A folder with a folder of pictures for each class; null has a small set written, random
    JPEGs of 375 x 500 pixels, for as long as the run takes. Helps to measure one's own data and
    the disk that they lie on; a set just written is read from memory. Costs seconds to look at."""
    images: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many are written; null is 256, or four batches of all devices where that is more. Helps
    to see what the end of an epoch costs. Costs about 5 ms and 100 kB each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None and self.images is not None:
            raise ValueError("images are written where there is no path; give one of the two")


class Pictures:
    """See ``workloads.base.Samples``: the pictures of a folder, transformed.

    Args:
        folder: with a folder for each class.
        size: height and width that a crop is brought to.
    """

    def __init__(self, folder: Path, size: int) -> None:
        from torchvision.datasets import ImageFolder  # noqa: PLC0415 - see the module docstring

        self._folder = ImageFolder(str(folder), transform=training_transform(size))

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, index: int) -> Batch:
        """An image_CHW and its label."""
        image_CHW, label = self._folder[index]
        return Batch((image_CHW,), torch.tensor(label))


def training_transform(size: int) -> Any:
    """A crop of random place and size, brought to ``size``, perhaps mirrored, as numbers."""
    from torchvision.transforms import v2  # noqa: PLC0415 - see the module docstring

    return v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, DEVIATION),
            v2.ToPureTensor(),
        ]
    )


def random_picture(generator: torch.Generator) -> Tensor:
    """(3, HEIGHT, WIDTH) bytes: colours that go over into each other, and noise on top."""
    coarse_NCHW = torch.rand((1, 3, COARSE, COARSE), generator=generator)
    smooth_CHW = functional.interpolate(
        coarse_NCHW, (HEIGHT, WIDTH), mode="bicubic", align_corners=False
    )[0]
    noise_CHW = torch.randn(smooth_CHW.shape, generator=generator)
    return ((smooth_CHW + NOISE * noise_CHW).clamp(0, 1) * 255).to(torch.uint8)


def write_pictures(folder: Path, *, images: int, classes: int, seed: int) -> None:
    """JPEGs of as many classes, in turn; the same files for the same seed."""
    from PIL import Image  # noqa: PLC0415 - torchvision reads pictures with it

    for number in range(images):
        of_class = folder / f"class{number % classes:03}"
        of_class.mkdir(exist_ok=True)
        generator = torch.Generator().manual_seed(shard_seed(seed, number))
        picture_HWC = random_picture(generator).permute(1, 2, 0).contiguous()
        Image.fromarray(picture_HWC.numpy()).save(of_class / f"{number:06}.jpg", quality=QUALITY)


def check(facts: Facts, options: FolderOptions) -> str | None:
    """Whether the workload trains on pictures."""
    del options
    if not isinstance(facts.samples, Images):
        return (
            "a folder holds pictures, and the workload does not train on square pictures of three "
            "colours with one class each; use host"
        )
    return None


def count(facts: Facts, options: FolderOptions, at_once: int) -> int:
    """Pictures that are written."""
    del facts
    return options.images or max(LEAST_WRITTEN, BATCHES_WRITTEN * at_once)


def look(facts: Facts, options: FolderOptions, path: Path) -> Found:
    """What a user's folder holds.

    Raises:
        OSError: there is no such folder, or none with pictures in it.
    """
    del options
    images, (pictures, classes, digest) = facts.samples, _listed(path)
    assert isinstance(images, Images), "has been checked"
    problem = None
    if classes > images.classes:
        problem = (
            f"{path} has {classes} classes, the workload has {images.classes} outputs; raise its "
            "num_classes, or whatever it calls them"
        )
    return Found(count=pictures, digest=digest, problem=problem)


@functools.cache
def _listed(path: Path) -> tuple[int, int, str]:
    """(pictures, classes, digest of their names), as torchvision finds them."""
    from torchvision.datasets import ImageFolder  # noqa: PLC0415 - see the module docstring

    found = ImageFolder(str(path))
    digest = hashlib.blake2b(digest_size=8)
    for name, label in found.samples:
        digest.update(f"{Path(name).relative_to(path)}\0{label}\0".encode())
    return len(found), len(found.classes), digest.hexdigest()


def open_folder(options: FolderOptions, asked: Asked) -> Opened:
    """The user's pictures, or those that are written now, if no other process has."""
    images = asked.facts.samples
    assert isinstance(images, Images), "the plan skips all others"
    place = asked.place
    if place is None:
        written = count(asked.facts, options, asked.at_once)
        classes = min(MOST_CLASSES, images.classes)
        place = written_once(
            asked.scratch / f"pictures-{written}-{classes}-{asked.seed}",
            functools.partial(write_pictures, images=written, classes=classes, seed=asked.seed),
        )
    pictures = Pictures(place, images.size)
    return Opened(samples=pictures, count=len(pictures))


SOURCES = (
    Source(
        name="folder",
        summary="JPEGs from files, decoded, cropped and flipped by torchvision in a DataLoader",
        options=FolderOptions,
        check=check,
        look=look,
        count=count,
        open=open_folder,
    ),
)
