"""Gradients reduced level by level: what is sent at each, and that it is what one device has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from torch import distributed
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup
from torch.futures import Future

from bench.plan.case import Case
from bench.run.launch import Launcher
from bench.strategies import ddp, groups, hierarchical
from bench.strategies.ddp_options import DDPOptions
from bench.strategies.hierarchical import Levels
from tests.fakes import TWO_CORES, make_case
from tests.run.test_passes import by_operation, parameter_bytes, run
from tests.strategies.test_contract import planned_case, prove
from workloads.base import Facts

HOOK: dict[str, Any] = {"comm_hook": "hierarchical"}


def case_of(
    world_size: int, options: dict[str, Any], *, unused: bool = False, **settings: Any
) -> Case:
    case = planned_case("transformer:tiny", "tests.fakes:TWO_HOSTS", world_size, **settings)
    branch = {"unused_branch": True} if unused else {}
    return msgspec.structs.replace(
        case,
        options=case.options | HOOK | options,
        workload_options=case.workload_options | branch,
    )


@pytest.mark.parametrize(
    ("world_size", "options", "settings"),
    [
        (2, {}, {}),  # one rank a host: what is left is the all-reduce between them
        # The search's messages go to all ranks, in between those of many buckets.
        (
            4,
            {"bucket_cap_mb": 0.01, "find_unused_parameters": True},
            {"unused": True, "accumulation_steps": 2},
        ),
    ],
)
def test_ranks_of_several_hosts_train_the_model_that_one_device_would(
    launcher: Launcher,
    tmp_path: Path,
    world_size: int,
    options: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    parity = prove(launcher, case_of(world_size, options, **settings), tmp_path)
    assert parity.verdict == "exact", parity.reason
    assert parity.error is not None
    assert parity.error <= 1e-6
    assert parity.max_rank_divergence == 0  # also of ranks on different hosts


def test_each_level_sends_its_own_messages(launcher: Launcher) -> None:
    record, _ = run(launcher, case_of(4, {"bucket_cap_mb": 0.05}), "communication")
    found = record.communication
    assert found is not None
    assert found.bucket_bytes is not None
    levels = by_operation(found)
    assert set(levels) == {"all_to_all", "all_reduce", "all_gather"}
    assert {one.calls for one in levels.values()} == {len(found.bucket_bytes)}
    size = parameter_bytes()
    assert levels["all_to_all"].payload_bytes == levels["all_gather"].payload_bytes == size
    assert levels["all_reduce"].payload_bytes == size / 2  # a share of each of two ranks
    # Half to the other rank of the host, each way; and of the share as much as there is.
    assert {one.wire_bytes_minimum for one in levels.values()} == {size / 2}
    assert found.standalone_s is None  # of messages to a part of the ranks


def test_what_each_level_sends_is_told_by_its_ranks() -> None:
    case = make_case(strategy="ddp", world_size=8, nodes=2, options=HOOK)
    assert ddp.group_sizes(case) == [4, 2]
    ranks = ddp.operation_ranks(case)
    assert (ranks["reduce_scatter"], ranks["all_reduce"], ranks["all_gather"]) == (4, 2, 4)
    plain = msgspec.structs.replace(case, options={"comm_hook": "none"})
    assert (ddp.group_sizes(plain), ddp.operation_ranks(plain)) == ([8], {})


@pytest.mark.parametrize(
    ("placed", "facts", "words"),
    [
        ({"world_size": 4, "nodes": 1}, Facts(unit="token"), "several hosts, and has one"),
        ({"world_size": 2, "nodes": 2}, Facts(unit="token"), "several ranks on each host"),
        ({"world_size": 4, "nodes": 2}, Facts(unit="s", has_sparse_gradients=True), "dense ones"),
        ({"world_size": 4, "nodes": 2}, Facts(unit="token"), None),
    ],
)
def test_without_two_levels_it_is_skipped_with_the_reason(
    placed: dict[str, int], facts: Facts, words: str | None
) -> None:
    options = msgspec.to_builtins(DDPOptions(comm_hook="hierarchical"))
    reason = ddp.check(facts, make_case(strategy="ddp", options=options, **placed), TWO_CORES)
    assert reason is None if words is None else words in (reason or "")


def test_a_hook_is_one_and_over_gloo_in_turn() -> None:
    options = msgspec.to_builtins(DDPOptions(comm_hook="hierarchical", local_sgd_period=4))
    case = make_case(strategy="ddp", world_size=4, nodes=2, options=options)
    assert "one hook" in (ddp.check(Facts(unit="token"), case, TWO_CORES) or "")
    case = make_case(strategy="ddp", world_size=4, nodes=2, options=HOOK)
    assert ddp.flags(Facts(unit="token"), case) == ["hook_in_turn"]
    there = msgspec.structs.replace(case, device="cuda", backend="nccl")
    assert ddp.flags(Facts(unit="token"), there) == []


@dataclass
class Done:
    """Work that is over."""

    tensor: torch.Tensor

    def get_future(self) -> Future[list[torch.Tensor]]:
        future: Future[list[torch.Tensor]] = Future()
        future.set_result([self.tensor])
        return future


def test_where_a_backend_keeps_an_order_each_level_follows_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the second of two ranks of the first host of two, all of which have the same gradients."""
    within, between = Group(2, place=1), Group(2)
    seen = []

    def reduce_scatter(share: torch.Tensor, whole: torch.Tensor, *, group: Group, **_: Any) -> Done:
        seen.append(("reduce_scatter", group))
        share.copy_(2 * whole.chunk(2)[1])
        return Done(share)

    def all_reduce(share: torch.Tensor, *, group: Group, **_: Any) -> Done:
        seen.append(("all_reduce", group))
        return Done(share.mul_(2))

    def all_gather(whole: torch.Tensor, share: torch.Tensor, *, group: Group, **_: Any) -> Done:
        seen.append(("all_gather", group))
        return Done(whole.copy_(torch.cat([torch.tensor([1.0, 2.0, 3.0]), share])))

    monkeypatch.setattr(groups, "REDUCE_SCATTER", reduce_scatter)
    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(groups, "ALL_GATHER", all_gather)
    bucket = Bucket(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    levels = Levels(within=cast("ProcessGroup", within), between=cast("ProcessGroup", between))
    future = hierarchical.chained(levels, cast("GradBucket", bucket))
    assert future.wait() is bucket.gradients
    assert bucket.gradients.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]  # the mean of four times itself
    assert seen == [("reduce_scatter", within), ("all_reduce", between), ("all_gather", within)]


@dataclass
class Group:
    """Of so many ranks, and this one's place."""

    ranks: int
    place: int = 0

    def size(self) -> int:
        return self.ranks

    def rank(self) -> int:
        return self.place


@dataclass
class Bucket:
    """Of gradients."""

    gradients: torch.Tensor

    def buffer(self) -> torch.Tensor:
        return self.gradients


@pytest.mark.parametrize(("elements", "length"), [(6, 6), (7, 9)])
def test_what_cannot_be_shared_out_equally_is_filled_up(elements: int, length: int) -> None:
    bucket = cast("GradBucket", Bucket(torch.full((elements,), 12.0)))
    within, between = (cast("ProcessGroup", one) for one in (Group(3, place=1), Group(2)))
    levels = Levels(within=within, between=between)
    whole, share = hierarchical._prepared(levels, bucket)
    assert whole.tolist() == [2.0] * elements + [0.0] * (length - elements)  # of six ranks
    assert share.data_ptr() == whole[length // 3 :].data_ptr()
    assert len(share) == length // 3
    whole.fill_(5.0)
    returned = hierarchical._returned(whole, bucket)
    assert returned is bucket.buffer()
    assert returned.tolist() == [5.0] * elements
