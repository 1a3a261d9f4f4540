"""``bench new``: what it writes works, and nothing is overwritten."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from bench.cli import run_command_line
from bench.plan import own
from bench.plan.registry import find_strategy, find_workload
from workloads.base import Build


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(own, "_codes", {})
    yield
    for name in set(sys.modules) - known:
        if name.startswith("own_"):
            del sys.modules[name]


def test_a_new_workload_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["new", "workload", "tiny_net"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == ["tiny_net.py", "test_tiny_net.py", "next: bench run --workload tiny_net.py"]
    workload = find_workload("tiny_net.py")
    options = msgspec.convert({"layers": 2}, workload.options)
    assert workload.facts(options).unit == "sample"
    build = Build(
        device=torch.device("cpu"),
        dtype=torch.float64,
        seed=0,
        per_device_batch=4,
        optimizer=workload.optimizer,
    )
    problem = workload.build(options, build)
    batch = next(problem.batches(0, 2))
    problem.loss(problem.model(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is not None for one in problem.model.parameters())


def test_a_new_strategy_is_one(tmp_path: Path) -> None:
    assert run_command_line(["new", "strategy", "by_hand", "--dir", str(tmp_path)]) == 0
    strategy = find_strategy("by_hand.py")
    assert strategy.name == "by_hand"
    assert strategy.options.__struct_fields__ == ("in_fp32",)


@pytest.mark.parametrize("kind", ["workload", "strategy"])
def test_what_is_written_can_be_read(kind: str, tmp_path: Path) -> None:
    assert run_command_line(["new", kind, "mine"]) == 0
    for name in ("mine.py", "test_mine.py"):
        text = (tmp_path / name).read_text()
        assert "$" not in text
        assert max(map(len, text.splitlines())) <= 100
    assert 'check(Path(__file__).with_name("mine.py"))' in (tmp_path / "test_mine.py").read_text()


@pytest.mark.parametrize("there", ["mine.py", "test_mine.py"])
def test_nothing_is_overwritten(
    there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / there).write_text("mine\n")
    assert run_command_line(["new", "workload", "mine"]) == 2
    assert f"{there}: is there already; nothing was written" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine\n"


@pytest.mark.parametrize("name", ["by-hand", "1st", "class", "../up", ""])
def test_a_name_is_a_modules(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["new", "workload", name]) == 2
    assert "cannot be the name of a module" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["new", "workload", "mine", "--dir", "no/such"]) == 2
    assert "cannot be written: No such file" in capsys.readouterr().err
