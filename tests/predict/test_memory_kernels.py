from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from bench.predict.memory_kernels import workspace_bytes


def peak_within(events: list[dict[str, int]]) -> int:
    live = peak = 0
    for event in events:
        live += event["bytes"]
        peak = max(peak, live)
    return peak


def backward_of(weight: Tensor, gradient: Tensor) -> int:
    """Bytes that the backward of an embedding bag adds at its peak, its result included."""
    rows, width = weight.shape
    bag = nn.EmbeddingBag(rows, width, mode="sum")
    output = bag(torch.arange(16).reshape(8, 2))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        output.backward(gradient)
    assert profiler.profiler is not None
    memory = [
        {"bytes": event.nbytes()}
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    return peak_within(memory)


def test_an_embedding_bag_sorts_its_indices() -> None:
    weight = torch.zeros(100, 8)
    for gradient in (torch.ones(8, 8), torch.ones(8, 16)[:, ::2]):
        arguments = (gradient, torch.arange(16))
        extra = workspace_bytes(
            "aten::_embedding_bag_backward", arguments, device="cpu", backend=None
        )
        found = backward_of(weight, gradient)
        assert found == weight.nbytes + extra


def test_only_gloo_copies_what_it_scatters() -> None:
    arguments = (torch.zeros(2), torch.zeros(4))
    name = "c10d::_reduce_scatter_base_"
    assert workspace_bytes(name, arguments, device="cpu", backend="gloo") == 16
    assert workspace_bytes(name, arguments, device="cuda", backend="nccl") == 0
    assert workspace_bytes("aten::add.Tensor", arguments, device="cpu", backend="gloo") == 0
