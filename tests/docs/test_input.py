"""Every snippet of the page on where batches come from, as a reader would use it."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import pytest

from bench.cli import run_command_line
from bench.plan import own
from tests.docs.test_own import FILE, ROOT, blocks, commands
from tests.fakes import TWO_CORES
from workloads.data.folder import write_pictures

PAGE = ROOT / "docs" / "input.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the page's files in it, its token file, and pictures of one's own."""
    for kind, text in blocks(PAGE):
        named = FILE.match(text)
        if kind:
            assert named is not None
            (tmp_path / named[1]).write_text(text)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("write_text.py")
    (tmp_path / "photos").mkdir()
    write_pictures(tmp_path / "photos", images=8, classes=2, seed=0)
    monkeypatch.setattr(own, "_codes", {})
    monkeypatch.setattr("bench.measure.machine.probe_in_child", lambda: TWO_CORES)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_commands_plan_what_the_page_says(capfd: pytest.CaptureFixture[str]) -> None:
    for command in commands(PAGE):
        program, *arguments = shlex.split(command)
        assert program == "bench"
        if arguments[0] == "run":
            arguments.append("--dry-run")
        assert run_command_line(arguments) == 0, command
        printed = capfd.readouterr().out
        if arguments[0] == "plan":
            assert ", 0 of them skipped" in printed, printed
