from __future__ import annotations

import pytest

from bench.errors import BenchError
from bench.predict.network import Level, Places
from bench.predict.question import measured_network, question_of, sizes_of, with_contention
from bench.predict.site import site_of
from bench.predict.sweep import Question, choose, places_of, sweep, ways_of
from bench.records.profile import Profile
from tests.predict.made import MIB, network, profile, row, single


def question(**changes: object) -> Question:
    told: dict[str, object] = {"profile": profile(), "network": network()}
    return Question(**(told | changes))  # type: ignore[arg-type]


def test_ways_are_read_with_their_settings() -> None:
    plain, capped, listed = ways_of("ddp, ddp(bucket_cap_mb=100,static_graph=true), fsdp")
    assert (plain.strategy, plain.options["bucket_cap_mb"]) == ("ddp", None)
    assert (capped.options["bucket_cap_mb"], capped.options["static_graph"]) == (100, True)
    assert capped.label == "ddp(bucket_cap_mb=100,static_graph=true)"
    assert listed.strategy == "fsdp"
    (caps,) = ways_of("ddp(bucket_cap_mb_list=[1,25])")
    assert caps.options["bucket_cap_mb_list"] == [1, 25]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "names nothing"),
        ("dpp", "did you mean 'dp'"),
        ("ddp(bucket_cap_mb)", "sets nothing"),
        ("ddp(bucket_cap_mb=many)", "bucket_cap_mb"),
        ("ddp(no_such=1)", "no_such"),
        ("ddp((", "cannot be read"),
    ],
)
def test_what_is_no_way(text: str, what: str) -> None:
    with pytest.raises(BenchError, match=what):
        ways_of(text)


def test_hosts_are_filled_one_after_the_other() -> None:
    assert places_of(4, 8) == Places(hosts=1, per_host=4)
    assert places_of(32, 8) == Places(hosts=4, per_host=8)
    with pytest.raises(BenchError, match="do not fill"):
        places_of(12, 8)


def test_a_sweep_has_every_way_on_all_devices_that_it_can_have() -> None:
    over = network(between=Level(bus_bytes_per_s=MIB, latency_s=0.0))
    sizes = [places_of(number, 2) for number in (1, 2, 4)]
    rows = sweep(question(network=over), ways_of("single,dp,ddp"), sizes)
    assert [(one.case.label, one.case.world_size, one.hosts) for one in rows] == [
        ("single", 1, 1),
        ("dp", 1, 1),
        ("dp", 2, 1),
        ("ddp", 1, 1),
        ("ddp", 2, 1),
        ("ddp", 4, 2),
    ]
    assert len({one.case.id for one in rows}) == 6


def test_errors_are_the_strategys_own_or_those_of_all() -> None:
    errors = {"dp": (0.6, 0.0), "": (0.1, 0.05)}
    rows = sweep(question(errors=errors), ways_of("dp,fsdp"), [places_of(2, 2)])
    assert [(one.error_low, one.error_high) for one in rows] == [(0.6, 0.0), (0.1, 0.05)]


def test_the_quickest_way_and_what_no_difference_can_be_told_of() -> None:
    # 64 gradients of 1 MiB over a link for 32 of them in backward: small buckets hide half.
    made = profile(gradients=64)
    found = choose(
        question(profile=made, network=network(16.0 * MIB), errors={"": (0.01, 0.01)}),
        Places(hosts=1, per_host=2),
        ["ddp", "fsdp"],
    )
    assert found.best is found.ranked[0]
    labels = [one.case.label for one in found.ranked]
    assert labels.index("ddp(bucket_cap_mb=1)") < labels.index("ddp(bucket_cap_mb=200)")
    assert "ddp(bucket_cap_mb=200)" not in found.tied


def test_a_choice_flips_where_another_strategy_becomes_quicker() -> None:
    # DDP sends 2 x 1/2 of the gradients, FSDP 3 x 1/2: DDP over slow links. Over quick ones FSDP,
    # whose optimizer updates half.
    slow = question(network=network(MIB))
    found = choose(slow, Places(hosts=1, per_host=2), ["ddp", "fsdp"])
    assert found.best.case.strategy == "ddp"
    assert found.flips_to == "fsdp"
    assert found.flips_at_bytes_per_s is not None
    at = question(network=network(found.flips_at_bytes_per_s))
    assert choose(at, Places(hosts=1, per_host=2), ["ddp", "fsdp"]).best.case.strategy == "fsdp"
    below = question(network=network(found.flips_at_bytes_per_s / 10**0.1))
    assert choose(below, Places(hosts=1, per_host=2), ["ddp", "fsdp"]).best.case.strategy == "ddp"


def test_default_sizes_end_where_links_are_not_known() -> None:
    one_host = sizes_of(site_of("8 x V100 NVLink"), None)
    assert [one.ranks for one in one_host] == [1, 2, 4, 8]
    several = sizes_of(site_of("2 hosts x 8 x V100 NVLink at 100 Gbit/s"), None)
    assert [one.ranks for one in several] == [2**power for power in range(11)]
    with pytest.raises(BenchError, match="say how they are linked"):
        sizes_of(site_of("8 x V100 NVLink"), [16])
    with pytest.raises(BenchError, match="at least one device"):
        sizes_of(site_of("8 x V100 NVLink"), [0])


def test_measured_curves_take_the_place_of_known_ones() -> None:
    known = network()
    found = measured_network(known, [row(MIB, 3.0)], name="mine")
    assert found.curves["all_reduce", 2].alone.at(MIB) == pytest.approx(3.0)
    assert not found.half_of_all_reduce
    with pytest.raises(BenchError, match="two ranks or more"):
        measured_network(known, [row(MIB, 3.0, world_size=1)], name="mine")


def test_only_accelerators_have_published_contention() -> None:
    cpu = profile()
    assert with_contention(cpu).contention is None
    device: Profile = profile(case=single(device="cuda"))
    found = with_contention(device).contention
    assert found is not None
    # 1.189 times as long beside 235 GB/s.
    assert 1 / (1 - 2.35e11 * found.stolen_s_per_byte) == pytest.approx(1.189)


def test_a_question_needs_a_profile_or_a_figure() -> None:
    for told, what in (
        ({}, "give a --profile"),
        ({"model": "resnet50"}, "with the --throughput"),
    ):
        asked: dict[str, object] = {
            "profile": None,
            "model": None,
            "throughput": None,
            "per_device_batch": None,
            "gradient_mib": None,
            "optimizer": "sgd",
            "curve": None,
            "scaling": "weak",
            "accumulation_steps": 1,
        }
        with pytest.raises(BenchError, match=what):
            question_of("8 x V100 NVLink", **(asked | told))  # type: ignore[arg-type]
