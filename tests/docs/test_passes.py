"""Every snippet of the pages on checkpoints and learning, as a reader would use it."""

from __future__ import annotations

import itertools
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

from bench.cli import run_command_line
from bench.measure.checkpoint_files import write_whole
from bench.plan import own
from bench.plan.registry import find_workload
from tests.docs.test_own import FILE, ROOT, blocks, commands
from tests.fakes import TWO_CORES
from tests.strategies.test_saving import data, losses_of, session_of
from tests.workloads.test_tasks import learnt
from workloads.base import Build

FURTHER = {"--checkpoint", "--checkpoint-dir", "/mnt/shared", "--keep-checkpoints"}
FURTHER |= {"--train", "200", "100", "--scale-lr"}
"""What asks for more launches, and with what."""
PAGES = [ROOT / "docs" / name for name in ("checkpoints.md", "learning.md")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the files of both pages in it."""
    for page in PAGES:
        for kind, text in blocks(page):
            named = FILE.match(text)
            assert bool(kind) == bool(named)
            if named is not None:
                (tmp_path / named[1]).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(own, "_codes", {})
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_plan_more_launches(
    page: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.measure.machine.probe_in_child", lambda: TWO_CORES)
    found = commands(page)
    assert len(found) >= 4
    for command in found:
        program, *arguments = shlex.split(command)
        assert program == "bench"
        plain = [word for word in arguments if word not in FURTHER]
        counts = []
        for words in (arguments, plain):
            assert run_command_line([*words, "--dry-run"]) == 0, command
            counts.append(int(capfd.readouterr().out.rpartition("launches: ")[2].split(",")[0]))
        assert counts[0] > counts[1], command


def test_what_was_kept_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = session_of("single")
    losses_of(session, data().batches(0, 1), 2)
    write_whole(session.take_state(whole=True, with_optimizer=True), folder)
    runpy.run_path("read.py")
    assert capsys.readouterr().out.endswith("numbers after {2} steps\n")


@pytest.mark.usefixtures("folder")
def test_a_model_of_ones_own_learns() -> None:
    own.locate("digits.py", [])
    workload = find_workload("digits.py")
    problem = workload.build(
        workload.options(),
        Build(
            device=torch.device("cpu"),
            dtype=torch.float32,
            seed=0,
            per_device_batch=16,
            optimizer="adamw",
        ),
    )
    assert problem.task is not None
    assert problem.task.what == "points on either side of a line"
    first, second = itertools.islice(problem.task.batches(0, 1), 2)
    assert not torch.equal(first.inputs[0], second.inputs[0])
    losses = learnt(problem, 100)
    assert sum(losses[-10:]) / 10 < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--scale-lr"], "--scale-lr has nothing to do without --train N"),
        (["--keep-checkpoints"], "--keep-checkpoints has nothing to do without --checkpoint"),
        (["--checkpoint-dir", "x"], "--checkpoint-dir has nothing to do without --checkpoint"),
    ],
)
def test_an_option_of_what_is_not_asked_for_is_refused(
    options: list[str], remedy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["run", "quick", *options, "--dry-run"]) == 2
    assert remedy in capfd.readouterr().err
