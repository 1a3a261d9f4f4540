"""Which hosts a case is spread over, and what the links between them make of it."""

from __future__ import annotations

import msgspec
import pytest

from bench.errors import SuiteError
from bench.plan.case import Machine, identify
from bench.plan.matrix import expand
from bench.plan.suite import load_suite, parse_suite
from tests.fakes import EIGHT_GPUS, TWO_CORES, make_case
from tests.plan.test_matrix import block

TWO_HOSTS = msgspec.structs.replace(TWO_CORES, hosts=2)
LAB = msgspec.structs.replace(TWO_HOSTS, emulated=True)


def places(text: str, machine: Machine = TWO_HOSTS) -> list[tuple[int, int, str | None]]:
    planned = expand(parse_suite(text, source="my.yaml"), machine)
    return [(one.case.world_size, one.case.nodes, one.case.link) for one in planned]


def reasons(text: str, machine: Machine = TWO_HOSTS) -> list[str | None]:
    return [one.skip_reason for one in expand(parse_suite(text, source="my.yaml"), machine)]


def test_a_case_takes_the_fewest_hosts_that_have_its_devices() -> None:
    sizes = block("world_sizes: [1, 2, 4]")
    assert places(sizes) == [(1, 1, None), (2, 1, None), (4, 2, None)]
    assert places(sizes, TWO_CORES) == [(1, 1, None), (2, 1, None), (4, 1, None)]


def test_a_suite_may_spread_it_further() -> None:
    both = block("world_sizes: [2], nodes: [1, 2]")
    assert places(both) == [(2, 1, None), (2, 2, None)]
    assert reasons(both) == [None, None]
    assert reasons(both, TWO_CORES) == [None, "needs 2 hosts, this run has 1"]


@pytest.mark.parametrize(
    ("extra", "strategy", "reason"),
    [
        ("world_sizes: [3], nodes: 2", "ddp", "3 devices are not as many on each of 2 hosts"),
        ("world_sizes: [2], nodes: 2", "dp", "drives all devices from one process, which are"),
        ("world_sizes: [2], nodes: 2, link: 1gbit", "ddp", "links of real hosts are what they are"),
    ],
)
def test_what_cannot_be_spread_so_is_a_row(extra: str, strategy: str, reason: str) -> None:
    (found,) = reasons(block(extra, strategy=strategy))
    assert reason in str(found)


def test_one_process_stays_on_its_host() -> None:
    assert places(block("world_sizes: [4]", strategy="dp")) == [(4, 1, None)]
    gpus = msgspec.structs.replace(EIGHT_GPUS, hosts=2)
    (reason,) = reasons(block("world_sizes: [16]", strategy="dp"), gpus)
    assert reason == "needs 16 cuda devices, found 8"
    assert reasons(block("world_sizes: [16]"), gpus) == [None]
    assert reasons(block("world_sizes: [32]"), gpus) == ["needs 32 cuda devices, found 16"]


def test_more_ranks_than_all_hosts_have_cores_for_are_flagged() -> None:
    (planned,) = expand(parse_suite(block("world_sizes: [8]"), source="x"), TWO_HOSTS)
    assert (planned.case.nodes, planned.flags) == (2, ("oversubscribed", "shared_cores"))
    (planned,) = expand(parse_suite(block("world_sizes: [4]"), source="x"), TWO_HOSTS)
    assert planned.flags == ("shared_cores",)


def test_hosts_of_several_kinds_are_flagged() -> None:
    unlike = msgspec.structs.replace(TWO_HOSTS, unlike_hosts=True)
    text = block("world_sizes: [2, 4]")
    on_one, on_both = expand(parse_suite(text, source="x"), unlike)
    assert "mixed_devices" not in on_one.flags
    assert "mixed_devices" in on_both.flags


def test_a_link_is_an_axis_of_what_goes_over_it() -> None:
    links = block("world_sizes: [2, 4], link: [300mbit, 1gbit]")
    assert places(links, LAB) == [(2, 1, None), (4, 2, "300mbit"), (4, 2, "1gbit")]
    flags = [one.flags for one in expand(parse_suite(links, source="x"), LAB)]
    assert [("emulated_network" in one) for one in flags] == [False, True, True]


@pytest.mark.parametrize("link", ["fast", "1", "10 gbit", "0gbit"])
def test_a_link_is_a_rate_as_tc_has_it(link: str) -> None:
    with pytest.raises(SuiteError, match=r"matrix\[0\].link"):
        parse_suite(block(f"link: {link}"), source="x")


def test_cases_without_a_link_keep_their_ids() -> None:
    case = make_case(strategy="ddp", world_size=2)
    again = identify(msgspec.structs.replace(case, link=None, latency_ms=None, id=""))
    assert again.id == case.id
    linked = identify(msgspec.structs.replace(case, nodes=2, link="1gbit", latency_ms=0.5, id=""))
    assert "-2nodes-1gbit-0_5ms-" in linked.id


@pytest.mark.parametrize(("name", "links"), [("slow-network", 1), ("network-sweep", 5)])
def test_suites_of_the_network_are_for_the_laboratory(name: str, links: int) -> None:
    one_core = msgspec.structs.replace(LAB, cores=(0,))
    planned = expand(load_suite(name), one_core)
    assert [one.skip_reason for one in planned if one.skip_reason] == []
    across = [one for one in planned if one.case.nodes == 2]
    assert len({one.case.link for one in across}) == links
    assert {one.case.strategy for one in planned if one.case.nodes == 1} == {"single"}
    for one in expand(load_suite(name), TWO_CORES):
        assert one.skip_reason == (
            None if one.case.strategy == "single" else "needs 2 hosts, this run has 1"
        )
