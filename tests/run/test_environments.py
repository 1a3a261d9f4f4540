"""Cases with variables of their own: which server forks them, and in which order they are taken."""

from __future__ import annotations

import itertools
import multiprocessing.forkserver
import os
import random
import statistics
from pathlib import Path

import pytest

from bench.plan.case import PlannedCase
from bench.run import server
from bench.run.schedule import Estimate, Step, in_turn, reference_key, schedule
from tests.fakes import make_case
from tests.run.test_rounds import planned, run

RING, TREE = {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}
MIXED = [
    *[planned(2, seed=seed) for seed in range(4)],
    planned(2, env=RING, seed=4),
    planned(2, env=RING, seed=5),
    planned(2, env=TREE, seed=6),
]


def changes(steps: list[Step]) -> int:
    """How often the next step needs another server than the one before."""
    envs = [step.planned.case.env for step in steps]
    return sum(one != other for one, other in itertools.pairwise(envs))


def test_those_of_one_environment_follow_each_other_in_each_pass_and_round() -> None:
    for seed in range(10):
        steps = schedule(MIXED, seed)
        for pass_, launch in [("parity", 0), ("timing", 0), ("timing", 1), ("memory", 0)]:
            turn = [step for step in steps if (step.pass_, step.launch) == (pass_, launch)]
            assert len(turn) == len(MIXED)
            assert changes(turn) == 2


def test_every_case_stands_in_the_middle_of_its_round_on_average() -> None:
    steps = [Step(planned=one, pass_="timing", launch=0) for one in MIXED]
    places: dict[str, list[int]] = {one.case.id: [] for one in MIXED}
    for seed in range(2000):
        for place, step in enumerate(in_turn(steps, random.Random(seed).shuffle)):
            places[step.planned.case.id].append(place)
    for found in places.values():
        error = statistics.stdev(found) / len(found) ** 0.5
        assert abs(statistics.fmean(found) - 3) < 4 * error


def test_without_variables_the_order_is_what_it_was() -> None:
    steps = [Step(planned=planned(seed=seed), pass_="timing", launch=0) for seed in range(9)]
    expected = list(steps)
    random.Random(7).shuffle(expected)
    assert in_turn(steps, random.Random(7).shuffle) == expected


def test_a_server_is_started_for_each_round_and_each_environment_within_it(tmp_path: Path) -> None:
    plan: list[PlannedCase] = [planned(2), planned(2, env=RING, seed=1), planned(2, seed=2)]
    launcher, records, _ = run(tmp_path, plan)
    assert all(record.status == "ok" for record in records)
    forked_by: list[dict[str, str]] = []
    for index, _ in enumerate(launcher.jobs):
        before = [
            variables
            for count, variables in zip(launcher.renewed_before, launcher.renewed_with, strict=True)
            if count <= index
        ]
        forked_by.append(before[-1] if before else {})
    envs = {one.case.id: one.case.env for one in plan}
    assert [envs[id_] for _, id_ in launcher.jobs] == forked_by
    # One change within the proofs, two rounds with one change each, one within the last pass, and
    # at most one more between two of these.
    assert 5 <= len(launcher.renewed_with) <= 8
    restarts = [record.restart_s for record in records if record.restart_s is not None]
    assert len(restarts) == len(launcher.renewed_with)


def test_the_servers_to_come_are_part_of_the_estimate() -> None:
    def left_s(plan: list[PlannedCase]) -> float:
        steps = [Step(planned=one, pass_="timing", launch=0) for one in plan]
        return Estimate(restarts=[5.0]).left_s(steps)

    plain = [planned(seed=seed) for seed in range(2)]
    other = [planned(), planned(seed=1, env=RING)]
    assert left_s(other) - left_s(plain) == pytest.approx(5.0)


def test_a_reference_is_of_one_environment() -> None:
    assert reference_key(make_case(env=RING)) != reference_key(make_case())
    assert reference_key(make_case(env=RING, optimizer_kernels="fused")) == reference_key(
        make_case(env=RING)
    )


def test_a_server_serves_the_variables_that_it_was_started_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, str | None]] = []

    class FakeServer:
        def _stop(self) -> None:
            seen.append({"stopped": None})

    def ensure_running() -> None:
        seen.append({name: os.environ.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")})

    monkeypatch.setattr(server, "START_METHOD", "forkserver")
    monkeypatch.setattr(server, "_given", {})
    monkeypatch.setattr(multiprocessing.forkserver, "_forkserver", FakeServer())
    monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", ensure_running)
    monkeypatch.setenv("NCCL_PROTO", "LL")
    before = dict(os.environ)
    server.start_server()
    assert server.serves({})
    assert not server.serves(RING)
    server.start_server(RING)
    assert server.serves(RING)
    server.start_server(RING)  # goes on
    server.renew_server({"NCCL_PROTO": "Simple"})
    assert seen == [
        {"NCCL_ALGO": None, "NCCL_PROTO": "LL"},
        {"stopped": None},
        {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
        {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
        {"stopped": None},
        {"stopped": None},
        {"NCCL_ALGO": None, "NCCL_PROTO": "Simple"},
    ]
    added = {server.PARENT, "PYTORCH_NVML_BASED_CUDA_CHECK"}
    assert {name: value for name, value in os.environ.items() if name not in added} == {
        name: value for name, value in before.items() if name not in added
    }


def test_without_a_server_each_process_is_executed_with_its_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for method, expected in (("spawn", "Ring"), ("forkserver", None)):
        monkeypatch.setattr(server, "START_METHOD", method)
        with server.spawning(RING):
            assert os.environ.get("NCCL_ALGO") == expected
        assert "NCCL_ALGO" not in os.environ
