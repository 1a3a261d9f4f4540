"""Every snippet of the pages on one's own model and strategy, as a reader would use it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from bench import pytest_plugin
from bench.api.result import Comparison
from bench.cli import run_command_line
from bench.contract import Finding
from bench.plan import own
from bench.report.index import newest
from bench.report.page import load
from tests.fakes import TWO_CORES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("own-workload.md", "own-strategy.md")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")
SAID = ("bench: ", "shard units of ")
"""Beginnings of lines that a command prints."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    yield from BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[str]:
    """Each without the words beside it."""
    lines = [line for kind, text in blocks(page) if not kind for line in text.splitlines()]
    return [re.split(r" {2,}", line)[0] for line in lines if not line.startswith(SAID)]


def said(page: Path) -> list[str]:
    lines = [line for kind, text in blocks(page) if not kind for line in text.splitlines()]
    return [line for line in lines if line.startswith(SAID)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With the files of both pages in it."""
    for page in PAGES:
        for kind, text in blocks(page):
            named = FILE.match(text)
            if named is not None:
                assert kind in {"python", "yaml"}
                (tmp_path / named[1]).write_text(text)
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(own, "_codes", {})
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("own_") or name in {"vit", "test_vit", "test_by_hand"}:
            del sys.modules[name]


def test_every_block_of_code_is_a_file() -> None:
    kinds = [(kind, text) for page in PAGES for kind, text in blocks(page)]
    assert len([text for kind, text in kinds if kind and FILE.match(text)]) >= 7
    assert all(FILE.match(text) for kind, text in kinds if kind)


def test_the_first_model_is_short() -> None:
    text = next(text for kind, text in blocks(PAGES[0]) if kind == "python")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 15


@pytest.fixture
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at this one takes a process that imports torch."""
    monkeypatch.setattr("bench.measure.machine.probe_in_child", lambda: TWO_CORES)


@pytest.mark.usefixtures("folder", "_machine")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_plan_what_the_page_says(
    page: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def check(path: str, *, model: str) -> list[Finding]:
        assert model == "transformer:tiny"
        checked.append(path)
        return []

    monkeypatch.setattr("bench.contract.check_file", check)
    for command in commands(page):
        program, *arguments = shlex.split(command)
        if program != "bench" or arguments[0] == "new":
            continue  # has a test of its own
        if arguments[0] == "run":
            arguments.append("--dry-run")
        assert run_command_line(arguments) == 0, command
    assert checked == ["vit.py" if page == PAGES[0] else "by_hand.py"]
    printed = capfd.readouterr().out
    assert "cases: " in printed
    for line in (line for line in said(page) if line.startswith("shard units")):
        assert line in printed


@pytest.mark.usefixtures("folder", "_machine")
@pytest.mark.parametrize("name", ["mine.yaml", "by_hand.yaml"])
def test_suites_are_planned(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["plan", name]) == 0
    printed = capfd.readouterr().out
    assert "0 of them skipped" in printed


@pytest.mark.usefixtures("folder", "_machine")
def test_a_mistake_is_told_as_the_page_says(capfd: pytest.CaptureFixture[str]) -> None:
    (message,) = (line for line in said(PAGES[0]) if line.startswith("bench: "))
    assert run_command_line(["plan", "--workload", "{vit.py: {size: 30}}"]) == 2
    assert message in capfd.readouterr().err.splitlines()


def test_the_script_measures(folder: Path) -> None:
    """The one real run: processes read the script without running it."""
    done = subprocess.run(
        [sys.executable, "try_vit.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("vit.py:vit, preset default: weak scaling") == 1
    assert re.search(r"^ +2 +ddp .* exact$", done.stdout, re.MULTILINE), done.stdout
    assert "Estimate(value=" in done.stdout


@pytest.fixture
def recorded() -> Comparison:
    published = newest("quick", ROOT / "results")
    assert published is not None
    run, records, rows = load(published)
    own = [row for row in rows if row.case.workload == "transformer"]
    return Comparison(run=run, records=tuple(records), rows=tuple(own))


@pytest.mark.usefixtures("folder")
def test_tests_stand_for_speed_and_write_json(
    recorded: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, dict[str, Any]]] = []

    def compare(make: Any, **told: Any) -> Comparison:
        given.append((make, told))
        return recorded

    monkeypatch.setattr("bench.api.compare", compare)
    for command in commands(PAGES[0]):
        program, *arguments = shlex.split(command)
        if program == "pytest":
            plain = ["-p", "no:cacheprovider", "test_vit.py"]
            plugins = [] if _is_installed() else [pytest_plugin]
            assert pytest.main([*plain, *arguments], plugins=plugins) == 0
        if program == "pytest-benchmark":
            found = shutil.which(program, path=str(Path(sys.executable).parent))
            if found is None:
                pytest.skip(f"{program} is not installed")
            done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
            assert all(row.case.id in done.stdout for row in recorded.rows if row.launches)
    assert len(given) == 2
    make, told = given[0]
    assert (make.__name__, told["launches"]) == ("vit", 3)


def _is_installed() -> bool:
    return any(one.value == "bench.pytest_plugin" for one in entry_points(group="pytest11"))


@pytest.mark.usefixtures("folder")
def test_a_check_within_a_test_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def check(path: str) -> list[Finding]:
        asked.append(path)
        return []

    monkeypatch.setattr("bench.api.check", check)
    assert pytest.main(["-p", "no:cacheprovider", "test_by_hand.py"]) == 0
    assert asked == ["by_hand.py"]
