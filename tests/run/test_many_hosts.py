"""What becomes of outcomes, cores, interfaces and environments where hosts are several."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from bench.measure.device import visible_devices
from bench.records.environment import comparable, fingerprint
from bench.records.record import Placement
from bench.run.culprit import fault_of, find_culprit, reason_of
from bench.run.handover import Assignment, Failure, RankOutcome
from bench.run.loopback import LOOPBACK, interface_of, outward_variables
from bench.run.outcome import to_record
from bench.run.outcome_flags import share_cores
from bench.run.rounds import process_count
from bench.run.schedule import reference_key
from tests.fakes import EIGHT_GPUS, SHORT, make_case

ACROSS = make_case(strategy="ddp", world_size=4, nodes=2)


def outcome(rank: int, host: str, **changes: Any) -> RankOutcome:
    placement = Placement(cores=[rank % 2], threads=1)
    return RankOutcome(rank=rank, host=host, placement=placement, **changes)


def record(*outcomes: RankOutcome) -> Any:
    assignment = Assignment(
        job="parity", case=ACROSS, effort=SHORT, launch=0, folder="", started_s=0.0, cores=(),
        environment={},
    )  # fmt: skip
    return to_record(assignment, outcomes, run_id="r", environment="e", units=("token", 1))


def test_each_host_has_its_share_of_processes_and_devices() -> None:
    assert process_count(ACROSS) == 2
    gpus = msgspec.structs.replace(ACROSS, device="cuda")
    seen = visible_devices(gpus, EIGHT_GPUS)["CUDA_VISIBLE_DEVICES"]
    assert seen == "GPU-00000000,GPU-00000001"


def test_each_host_makes_the_reference_of_what_it_takes_part_in() -> None:
    on_one = msgspec.structs.replace(ACROSS, nodes=1)
    assert reference_key(on_one) != reference_key(ACROSS)


def test_a_record_names_the_host_of_every_rank_and_the_one_at_fault() -> None:
    fault = Failure(status="failed", reason="ValueError: odd", at_s=2.0, exception="ValueError")
    echo = Failure(status="failed", reason="Connection closed by peer", at_s=1.0)
    outcomes = [
        outcome(0, "a", failure=echo),
        outcome(1, "a", failure=echo),
        outcome(2, "b", failure=fault, phase="window"),
        outcome(3, "b", failure=echo),
    ]
    made = record(*outcomes)
    assert made.hosts == ["a", "a", "b", "b"]
    assert [place.host for place in made.placement] == ["a", "a", "b", "b"]
    assert made.reason == "rank 2 of 4 on b, in window: ValueError: odd"
    assert (made.fault.rank, made.fault.host) == (2, "b")


def test_a_host_that_left_comes_before_what_others_say_of_it() -> None:
    left = Failure(status="failed", reason="host 1 (b) left the run: cut", is_of_launch=True)
    echo = Failure(status="failed", reason="recvBytes: Connection reset", at_s=1.0)
    outcomes = [outcome(0, "a", failure=echo), outcome(1, "b", failure=left)]
    culprit = find_culprit(outcomes)
    assert culprit is not None
    assert reason_of(culprit, outcomes) == "host 1 (b) left the run: cut"
    fault = fault_of(culprit, outcomes)
    assert (fault.rank, fault.host) == (None, "b")


def test_cores_of_one_number_on_two_hosts_are_two() -> None:
    both = [Placement(cores=[0], threads=1, host=host) for host in ("a", "b")]
    assert not share_cores(both, "cpu")
    emulated = [msgspec.structs.replace(one, host=None) for one in both]
    assert share_cores(emulated, "cpu")


def test_ranks_talk_over_the_interface_that_leads_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    loopback = LOOPBACK[sys.platform]
    assert interface_of("127.0.0.1") == interface_of("::ffff:127.0.0.1") == loopback
    assert interface_of("203.0.113.7") is None
    assert outward_variables("eth7") == {"GLOO_SOCKET_IFNAME": "eth7"}
    assert outward_variables(None) == {}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert outward_variables("eth7") == {}, "the user has chosen"


def test_an_environment_of_several_hosts_is_that_of_each() -> None:
    one: dict[str, Any] = {"cpu": "x", "cores": [0], "variables": {}, "versions": {}}
    two = one | {"hosts": [{"name": "a", **one}, {"name": "b", **one}]}
    renamed = one | {"hosts": [{"name": "c", **one}, {"name": "d", **one}]}
    other = one | {"hosts": [{"name": "a", **one}, {"name": "b", **one, "cpu": "y"}]}
    emulated = two | {"network": {"kind": "emulated", "links": []}}
    measured_again = two | {"network": {"kind": "emulated", "links": [1]}}
    assert "hosts" not in comparable(one), "as it was before there were several"
    assert fingerprint(two) == fingerprint(renamed)
    assert fingerprint(emulated) == fingerprint(measured_again)
    assert len({fingerprint(env) for env in (one, two, other, emulated)}) == 4
