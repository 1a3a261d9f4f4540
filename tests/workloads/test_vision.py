from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from workloads.base import Batch, Build
from workloads.vision import (
    AUXILIARY,
    VisionOptions,
    _fits,
    facts,
    loss_of,
    make,
    make_model,
    names,
    smallest,
)

META = torch.device("meta")


def test_every_classifier_has_presets_of_sizes_that_it_takes() -> None:
    found = names()
    assert {"resnet50", "vit_b_16", "googlenet", "inception_v3"} <= set(found)
    assert len(found) > 70
    for name in found:
        for preset in make(name).presets.values():
            assert isinstance(preset.options, VisionOptions)
            assert _fits(name, preset.options.image_size), name


@pytest.mark.parametrize("name", ["alexnet", "vit_h_14", "shufflenet_v2_x0_5", "squeezenet1_0"])
def test_the_smallest_image_goes_through(name: str) -> None:
    size = smallest(name)
    with META:
        model = make_model(name, VisionOptions(image_size=size, num_classes=5))
        assert model.train()(torch.ones(2, 3, size, size)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("resnet50", 16, "at least 32 for resnet50"),
        ("vit_b_16", 40, "a multiple of 16 for vit_b_16"),
        ("inception_v3", 224, "at least 299"),
        ("maxvit_t", 256, "a multiple of 224"),
    ],
)
def test_an_image_that_it_does_not_take_is_refused_in_words(
    name: str, size: int, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        facts(name, VisionOptions(image_size=size))


def test_facts() -> None:
    assert facts("resnet18", VisionOptions()).has_batch_norm
    assert not facts("squeezenet1_0", VisionOptions()).has_batch_norm
    assert not facts("vgg11", VisionOptions()).has_shard_units
    assert not facts("googlenet", VisionOptions()).gives_one_tensor
    assert facts("googlenet", VisionOptions(auxiliary=False)).gives_one_tensor


def test_auxiliary_outputs_count_with_their_weight() -> None:
    logits = torch.tensor([[2.0, 0.0]])
    batch = Batch((), torch.tensor([0]))
    one = functional.cross_entropy(logits, batch.targets)
    assert loss_of(0.3, logits, batch) == one
    torch.testing.assert_close(loss_of(0.3, (logits, logits, logits), batch), 1.6 * one)
    assert AUXILIARY == {"googlenet": 0.3, "inception_v3": 0.4}


def test_one_of_them_trains() -> None:
    workload = make("squeezenet1_1")
    build = Build(
        device=torch.device("cpu"),
        dtype=torch.float64,
        seed=0,
        per_device_batch=2,
        optimizer="sgd",
        is_proof=True,
    )
    options, batch = workload.for_proof(VisionOptions(num_classes=3), 8)
    assert (options.image_size, batch) == (32, 4)
    problem = workload.build(options, build)
    given = next(problem.batches(0, 1))
    problem.loss(problem.model(*given.inputs), given).backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is not None for one in problem.model.parameters())
