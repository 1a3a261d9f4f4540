"""What one strategy has saved, others go on from, on as many ranks or on one."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from torch import distributed

from bench.measure import checkpoint_files as files
from bench.measure.reference import accumulate, step_batches
from bench.plan.registry import find_strategy
from bench.run.server import START_METHOD
from bench.strategies.base import Context, SavedSession
from bench.strategies.module_session import ModuleSession
from bench.strategies.saving import by_name, by_number
from tests.workloads.test_workloads import build
from workloads.base import Batch, Problem

RANKS = 2
BEFORE, AFTER = 2, 2
OTHERS = ("ddp", "zero", "fsdp1", "fsdp")


def session_of(name: str, *, rank: int = 0, ranks: int = 1, seed: int = 7) -> ModuleSession:
    strategy = find_strategy(name)
    context = Context(
        device=torch.device("cpu"),
        rank=rank,
        world_size=ranks,
        precision="fp32",
        accumulation_steps=1,
        options=msgspec.convert({}, strategy.options),
    )
    session = strategy.prepare(build("transformer", dtype=torch.float64, seed=seed), context)
    assert isinstance(session, ModuleSession)
    return session


def data() -> Problem:
    return build("transformer", dtype=torch.float64)


def losses_of(session: SavedSession, batches: Iterator[Batch], steps: int) -> list[float]:
    """Of this rank's own samples."""
    losses = []
    for batch in itertools.islice(batches, steps):
        losses.append(session.micro_step(batch, sync=True, mark=lambda _: None).item())
        session.optimizer_step()
    return losses


def errors(losses: list[float], expected: list[float]) -> float:
    return max(abs(one - other) / other for one, other in zip(losses, expected, strict=True))


def one_of_two(rank: int, folder: Path) -> None:
    """A process that saves under fsdp, and restores under all others."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    session = session_of("fsdp", rank=rank, ranks=RANKS)
    batches = data().batches(rank, RANKS)
    losses_of(session, batches, BEFORE)
    files.write_sharded(session.take_state(whole=False, with_optimizer=True), folder)
    full = session.take_state(whole=True, with_optimizer=True)
    if rank == 0:
        (folder / "full").mkdir()
        files.write_whole(full, folder / "full")
    expected = losses_of(session, batches, AFTER)
    session.close()
    found = {"full on other ranks": float(len(full)) if rank else 0.0}
    for name in OTHERS:
        restored = session_of(name, rank=rank, ranks=RANKS, seed=8)
        restored.put_state(files.read_whole(folder), whole=True)
        rest = itertools.islice(data().batches(rank, RANKS), BEFORE, None)
        found[name] = errors(losses_of(restored, rest, AFTER), expected)
        restored.close()
    every: list[list[float]] = [[]] * RANKS
    distributed.all_gather_object(every, expected)
    if rank == 0:
        means = [sum(losses) / RANKS for losses in zip(*every, strict=True)]
        for name, place in {"single": folder, "single, full": folder / "full"}.items():
            restored = session_of("single", seed=9)
            restored.put_state(files.read_whole(place), whole=True)
            found[name] = errors(list(_trained(restored.problem, restored)), means)
    distributed.barrier()
    distributed.destroy_process_group()
    (folder / f"found{rank}.json").write_text(json.dumps(found))


def _trained(problem: Problem, session: SavedSession) -> Iterator[float]:
    """One device on the samples of both."""
    steps = step_batches(data(), shards=RANKS, accumulation_steps=1, whole=False)
    for batches in itertools.islice(steps, BEFORE, BEFORE + AFTER):
        yield accumulate(problem, batches)
        session.optimizer_step()


@pytest.mark.usefixtures("_server")
def test_what_fsdp_saves_on_two_ranks_others_go_on_from(tmp_path: Path) -> None:
    context = multiprocessing.get_context(START_METHOD)
    ranks = [context.Process(target=one_of_two, args=(rank, tmp_path)) for rank in range(RANKS)]  # type: ignore[attr-defined]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(120)
        assert one.exitcode == 0
    for rank in range(RANKS):
        found = json.loads((tmp_path / f"found{rank}.json").read_text())
        assert set(OTHERS) <= set(found)
        assert max(found.values()) < 1e-9, found
    assert {"single", "single, full"} <= set(json.loads((tmp_path / "found0.json").read_text()))


def test_an_optimizer_that_forgets_is_no_match() -> None:
    """The losses do show a state of the optimizer that was not restored."""
    session = session_of("single")
    batches = data().batches(0, 1)
    losses_of(session, batches, BEFORE)
    state = session.take_state(whole=True, with_optimizer=True)
    copied = {"model": {name: one.clone() for name, one in state["model"].items()}}
    expected = losses_of(session, batches, AFTER)
    restored = session_of("single", seed=8)
    restored.put_state(copied, whole=True)
    rest = itertools.islice(data().batches(0, 1), BEFORE, None)
    assert errors(losses_of(restored, rest, AFTER), expected) > 1e-6


def test_an_optimizers_state_goes_by_name_and_back() -> None:
    state = {"state": {0: {"step": 3}, 1: {"step": 4}}, "param_groups": [{"params": [0, 1]}]}
    named = by_name(state, ["a", "b"])
    assert named["state"] == {"a": {"step": 3}, "b": {"step": 4}}
    assert named["param_groups"] == [{"params": ["a", "b"]}]
    assert by_number(named, ["a", "b"]) == state
    assert by_number(named, ["b", "a"])["state"] == {1: {"step": 3}, 0: {"step": 4}}


@pytest.mark.parametrize(
    ("strategy", "options", "ranks", "form"),
    [
        ("single", {}, 1, "whole"),
        ("dp", {}, 2, "whole"),
        ("zero", {}, 2, "whole"),
        ("ddp", {}, 2, "whole"),
        ("ddp", {"comm_hook": "powersgd"}, 2, "none"),
        ("ddp", {"local_sgd_period": 4}, 2, "none"),
        ("fsdp", {}, 2, "sharded"),
        ("fsdp1", {"sharding_strategy": "full_shard"}, 2, "sharded"),
        ("fsdp1", {"sharding_strategy": "full_shard"}, 1, "whole"),
        ("fsdp1", {"sharding_strategy": "no_shard"}, 2, "whole"),
        ("deepspeed", {}, 2, "none"),
    ],
)
def test_each_strategy_says_how_it_is_saved(
    strategy: str, options: dict[str, object], ranks: int, form: str
) -> None:
    saving = find_strategy(strategy).saving(options, ranks)
    assert saving.form == form
    assert bool(saving.reason) == (form == "none")
