"""Compiled models in real processes; what compiles is torch's own where that is what is tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from bench.plan.case import Case, Effort, Limits
from bench.records.record import Compilation, Record
from bench.run import server
from bench.run.handover import Job
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from tests.compilers import SLOW_S
from tests.fakes import SHORT, make_case
from tests.strategies.test_contract import planned_case, proof

PERCEPTRON = "tests.compilers:PERCEPTRON"
EFFORT = msgspec.structs.replace(SHORT, warmup_steps=1, timeout_s=100)


def compiled(strategy: str, world_size: int = 1, **settings: Any) -> Case:
    workload = settings.pop("workload", f"{PERCEPTRON}:tiny")
    return planned_case(workload, strategy, world_size, compile="default", **settings)


def launch(launcher: Launcher, case: Case, job: Job = "timing", effort: Effort = EFFORT) -> Record:
    assignment, outcomes = launcher.launch_case(
        case, effort, job, launch=0, processes=case.world_size
    )
    return to_record(assignment, outcomes, run_id="r", environment="e", units=("sample", 1))


def section(record: Record) -> Compilation:
    assert record.status == "ok", record.reason
    assert record.compilation is not None
    return record.compilation


def test_a_compiled_model_is_proved_and_compiled_once_a_run(
    launcher: Launcher, tmp_path: Path
) -> None:
    """With torch's own compiler: all that it writes stays in the run's own folder."""
    case = compiled("ddp", 2)
    proved = proof(launcher, case, tmp_path)
    assert proved.parity is not None
    assert proved.parity.verdict == "exact", proved.parity.reason
    assert section(proved).graphs == 2  # of the model in fp64, and of that in fp32
    record = launch(launcher, case)
    found = section(record)
    assert (found.mode, found.scope, found.ddp_mode) == ("default", "outside", "ddp_optimizer")
    assert (found.graphs, found.operations) == (1, 3)
    assert found.cache_hits > 0  # what the proof, whose batch is as large, has compiled
    assert found.cache_misses == 0
    assert found.recompiles_in_window == 0
    assert all(seconds > 0 for seconds in found.compile_s)
    assert {"not_compiled", "recompiled"}.isdisjoint(record.flags)
    assert record.timing is not None
    first, later = record.timing.first_step_s[0], record.timing.step_s[0]
    assert first is not None
    assert first > max(later)
    assert any((launcher.scratch / "compiled").iterdir())
    pid = server.server_pid()
    assert pid is None or psutil.Process(pid).children(recursive=True) == []


def test_graphs_are_cut_at_ddps_buckets_and_train_the_same_model(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Three buckets: the first is full at 1 MiB, and the last parameters need one of their own."""
    case = compiled("tests.compilers:QUICK", 2, workload="transformer:tiny")
    case = msgspec.structs.replace(
        case,
        workload_options=case.workload_options | {"width": 128, "layers": 3},
        options=case.options | {"bucket_cap_mb": 1.0},
    )
    record = proof(launcher, case, tmp_path)
    found = section(record)
    assert record.parity is not None
    assert record.parity.verdict == "exact", record.parity.reason
    assert found.graphs == 2  # of one model in fp64, and of one in fp32
    assert found.parts > 3
    assert found.breaks > 0  # at DDP's own bookkeeping, before the model
    assert found.reasons is not None


def test_what_compiles_in_the_window_is_seen(launcher: Launcher) -> None:
    record = launch(launcher, compiled("tests.compilers:LATE"))
    assert section(record).recompiles_in_window == 1
    assert "recompiled" in record.flags


def test_a_model_that_is_closed_to_the_compiler_is_not_called_compiled(launcher: Launcher) -> None:
    case = compiled("single")
    case = msgspec.structs.replace(case, workload_options=case.workload_options | {"open": False})
    record = launch(launcher, case)
    assert section(record).graphs == 0
    assert "not_compiled" in record.flags


def test_a_rank_that_compiles_slowly_trips_no_limit_of_the_others(launcher: Launcher) -> None:
    """They wait in a collective, all in a phase that may take that long."""
    limits = Limits(warm_up_s=SLOW_S / 2, pass_s=SLOW_S / 2, compile_s=60.0)
    effort = msgspec.structs.replace(EFFORT, limits=limits)
    record = launch(launcher, compiled("tests.compilers:SLOW", 2), effort=effort)
    found = section(record)
    assert found.compile_s[1] >= SLOW_S
    assert found.compile_s[1] - found.compile_s[0] >= SLOW_S / 2
    assert record.timing is not None
    first_s, second_s = record.timing.first_step_s
    assert first_s is not None
    assert second_s is not None
    assert min(first_s, second_s) >= SLOW_S
    assert max(max(steps) for steps in record.timing.step_s) < SLOW_S


@pytest.mark.parametrize("job", ["memory", "communication"])
def test_the_other_passes_see_compiled_models_too(launcher: Launcher, job: Job) -> None:
    world_size = 2 if job == "communication" else 1
    record = launch(launcher, compiled("tests.compilers:QUICK", world_size), job)
    assert section(record).graphs == 1
    if job == "memory":
        assert "allocations_drift" not in record.flags
        assert record.memory is not None
        assert all(record.memory.peak_allocated_bytes)
    else:
        assert record.communication is not None
        assert record.communication.collectives is not None
        (reduced,) = [one for one in record.communication.collectives if one.op == "all_reduce"]
        assert reduced.payload_bytes == (8 * 8 + 8 + 8 + 1) * 4


@pytest.mark.gpu
def test_memory_within_captured_graphs_is_reserved_and_not_allocated(launcher: Launcher) -> None:
    if launcher.machine.accelerator != "cuda":
        pytest.skip("needs a CUDA device")
    case = make_case(device="cuda", backend=None, cores_per_device=None, compile="reduce-overhead")
    record = launch(launcher, case)
    assert section(record).graphs == 1
    assert section(record).recompiles_in_window == 0
    assert "captured" in record.flags
    assert record.memory is not None
    assert record.memory.peak_allocated_bytes == [None]
    assert all(record.memory.peak_reserved_bytes)
