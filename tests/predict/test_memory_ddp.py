"""The stand-in for DDP against DDP itself, on tensors that have data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from bench.predict.memory_ddp import BucketedModule
from tests.fakes import world_of_one

KIB = 2**10


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    world_of_one()
    yield
    distributed.destroy_process_group()


def model() -> nn.Sequential:
    """The first and last weight have 16 and 64 KiB, with biases of 128 and 512 bytes."""
    torch.manual_seed(0)
    widths = [128, 32, 64, 256, 64, 128, 128]
    return nn.Sequential(*(nn.Linear(*pair) for pair in itertools.pairwise(widths)))


def trained(module: nn.Module, steps: int = 6) -> list[torch.Tensor]:
    for _ in range(steps):
        module.zero_grad()
        module(torch.ones(2, 128)).sum().backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def sizes(module: Any) -> str:
    found = module._get_ddp_logging_data()
    keeps = module.find_unused_parameters and not module.static_graph  # never rebuilds them
    return str(found["bucket_sizes" if keeps else "rebuilt_bucket_sizes"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.0625},
        {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.1, "static_graph": True},
        {"bucket_cap_mb": 0.1, "find_unused_parameters": True},
    ],
)
def test_buckets_are_those_of_torch(options: dict[str, Any]) -> None:
    own, other = BucketedModule(model(), **options), DistributedDataParallel(model(), **options)
    pairs = zip(trained(own), trained(other), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    assert sizes(own) == sizes(other)


def test_buckets_hold_all_gradients_once() -> None:
    own = BucketedModule(model(), bucket_cap_mb=0.0625)
    trained(own)
    buckets = [bucket.nbytes for bucket in own.held_tensors()["buckets"]]
    assert sum(buckets) == sum(one.nbytes for one in own.parameters())
    # The bias is ready first, and the weight after it closes the bucket, which so overshoots.
    assert buckets[0] == 64 * KIB + 512


@pytest.mark.parametrize("as_view", [True, False])
def test_views_stand_in_the_buckets(*, as_view: bool) -> None:
    own = BucketedModule(model(), gradient_as_bucket_view=as_view)
    gradients = trained(own)
    buckets = {one.untyped_storage().data_ptr() for one in own.held_tensors()["buckets"]}
    inside = [one.untyped_storage().data_ptr() in buckets for one in gradients]
    assert inside == [as_view] * 12


def test_a_hook_is_torchs_own() -> None:
    own, other = BucketedModule(model()), DistributedDataParallel(model())
    for module in (own, other):
        module.register_comm_hook(None, bf16_compress_hook)
    trained(own)
    # What a hook gives back is written by the reducer; here the sizes are what counts.
    assert own.held_tensors()["communication"] == []
    trained(other)
    assert sizes(own) == sizes(other)


def test_gradients_stay_local_where_asked() -> None:
    own = BucketedModule(model(), gradient_as_bucket_view=True)
    trained(own)
    (bucket,) = own.held_tensors()["buckets"]
    before = bucket.clone()
    with own.no_sync():
        own(torch.ones(2, 128)).sum().backward()
    # Accumulated in place: the gradients are views of the bucket since the last synchronisation.
    assert torch.equal(bucket, 2 * before)
