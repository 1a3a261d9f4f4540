"""Faults that ranks, the network and the machine inject for real, one launch for each."""

from __future__ import annotations

import ast
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from bench.errors import CONTROL, in_words
from bench.records.record import Record
from bench.records.store import read_records
from bench.run import elastic, server
from bench.run.handles import BASE, PER_RANK
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from tests.fakes import SHORT, make_case
from tests.faults import FAULTS, LIMITS, PAGE, RANK_FAULTS, RankFault, page

ROOT = Path(__file__).parent.parent
EFFORT = msgspec.structs.replace(SHORT, limits=LIMITS)


def measure(launcher: Launcher, strategy: str, *, ranks: int = 2) -> Record:
    case = make_case(strategy=strategy, world_size=ranks, options={})
    assignment, outcomes = launcher.launch_case(case, EFFORT, "timing", launch=0, processes=ranks)
    return to_record(assignment, outcomes, run_id="r", environment="e", units=("token", 1))


def ports() -> set[int]:
    connections = psutil.Process().net_connections(kind="inet")
    return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


@pytest.fixture
def nothing_left(launcher: Launcher) -> Iterator[None]:
    """No process, port, shared memory or temporary file of a launch may be left after it."""
    server.start_server()
    temporary = launcher.scratch.parent
    before = ports()
    yield
    pid = server.server_pid()
    if pid is not None and psutil.pid_exists(pid):
        assert psutil.Process(pid).children(recursive=True) == []
    assert ports() <= before
    assert [path.name for path in temporary.iterdir() if path != launcher.scratch] == []
    assert list(launcher.scratch.iterdir()) == []


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("fault", RANK_FAULTS, ids=lambda one: one.strategy.lower())
def test_a_rank_at_fault(launcher: Launcher, fault: RankFault) -> None:
    record = measure(launcher, f"tests.fakes:{fault.strategy}")
    assert record.status == fault.status, record.reason
    assert (record.teardown_exit or {}) == fault.teardown_exit
    assert set(fault.flags) <= set(record.flags)
    assert record.retries is None
    if fault.reason is None:
        assert record.fault is None
        assert record.reason is None
        assert record.throughput is not None
        return
    assert record.throughput is None
    assert record.reason is not None
    assert fault.reason in record.reason
    found = record.fault
    assert found is not None
    assert (found.rank, found.exception, found.signal, found.exit_code) == (
        fault.rank,
        fault.exception,
        fault.signal,
        fault.code,
    )
    assert found.phase == fault.phase
    assert fault.traceback in "\n".join(found.traceback)
    if fault.rank is not None and found.phase == "warm-up":
        assert found.step == 2
    for line in [line for lines in (record.log_tail or {}).values() for line in lines]:
        assert len(line) <= 500
        assert CONTROL.search(line) is None
    if fault.status == "timeout":
        ended = re.search(r"no end after ([0-9.]+) s", record.reason)
        assert ended is not None
        assert float(ended[1]) < LIMITS.warm_up_s + 5
        assert record.log_tail is not None
        assert all("most recent call first" in "\n".join(record.log_tail[rank]) for rank in "01")


@pytest.mark.usefixtures("nothing_left")
def test_a_start_that_fails_in_passing_is_tried_again(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = getattr(elastic, "elastic_launch")  # noqa: B009 - not exported from there
    failures = ["the server socket has failed to listen: EADDRINUSE, address already in use"]

    def elastic_launch(*arguments: Any) -> Any:
        if failures:
            raise RuntimeError(failures.pop())
        return real(*arguments)

    monkeypatch.setattr(elastic, "elastic_launch", elastic_launch)
    record = measure(launcher, "tests.fakes:UNWRAPPED")
    assert record.status == "ok"
    assert record.retries == [
        "RuntimeError: the server socket has failed to listen: EADDRINUSE, address already in use"
    ]


@pytest.mark.usefixtures("nothing_left")
def test_an_interface_that_does_not_exist_is_named(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope0")
    server.renew_server()  # ranks have the environment of their server
    try:
        record = measure(launcher, "tests.fakes:UNWRAPPED")
    finally:
        monkeypatch.undo()
        server.renew_server()
    assert record.status == "failed"
    assert record.reason is not None
    assert "nope0" in record.reason
    assert record.fault is not None
    assert record.fault.phase == "start"
    assert record.retries is None


@pytest.mark.usefixtures("nothing_left")
def test_a_clock_that_is_set_back(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.time()
    calls = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: started - 3600.0 * next(calls))
    record = measure(launcher, "tests.fakes:UNWRAPPED")
    assert record.status == "ok"
    assert record.timing is not None
    assert record.timing.launch_s is not None
    assert 0 < record.timing.launch_s < 300
    assert min(record.timing.window_s) > 0


DATED = {"session.py", "write.py"}
"""Modules that name a folder, or say when something was made."""


def test_only_clocks_that_go_forward_are_used() -> None:
    for path in (ROOT / "bench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("time", "time"), f"{path}:{node.lineno}"
                if node.value.id == "datetime" and path.name not in DATED:
                    assert node.attr not in {"datetime", "now"}, f"{path}:{node.lineno}"


def test_a_parent_without_file_handles_fails_the_launch_and_not_the_next(
    launcher: Launcher,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in (0, 3, 20, 45):
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
        try:
            with pytest.raises(OSError, match="Too many open files") as caught:
                measure(launcher, "tests.fakes:UNWRAPPED")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "too many open files" in in_words(caught.value).lower()
        assert spare == 0 or "48 more needed to start 2 ranks" in in_words(caught.value)
    assert measure(launcher, "tests.fakes:UNWRAPPED").status == "ok"


def test_a_launch_keeps_to_the_file_handles_that_are_required_for_it(launcher: Launcher) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for ranks in (1, 2, 4):
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + BASE + PER_RANK * ranks + 2, hard))
        try:
            assert measure(launcher, "tests.fakes:UNWRAPPED", ranks=ranks).status == "ok"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


SUITE = """\
defaults: {{launches: 1, window: {{min_steps: 4, max_s: 0.2, target_interval: 0.5}}}}
matrix: [{{workloads: [transformer:tiny], world_sizes: [2], strategies: [{strategies}]}}]
"""


def bench(*arguments: str, folder: Path, prefix: tuple[str, ...] = ()) -> Any:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "bench", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(folder)},
    )


def is_torchs(path: Path) -> bool:
    """Its cache of compiled code; and what torch 2.9 makes when it is imported, which stays where
    the process that has imported it is killed."""
    made = [one.name for one in path.iterdir()] if path.is_dir() else []
    return path.name.startswith("torchinductor_") or made == ["_remote_module_non_scriptable.py"]


def test_faults_cost_a_suite_their_own_rows_and_no_other(tmp_path: Path) -> None:
    names = ("EXIT", "SERVER", "ABORT", "SHAPE", "NAN")
    strategies = ", ".join(f"'tests.fakes:{name}'" for name in names)
    (tmp_path / "suite.yaml").write_text(SUITE.format(strategies=strategies))
    done = bench("run", "suite.yaml", "--out", "out", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "waitpid" not in done.stderr
    records = read_records(tmp_path / "out")
    expected = {one.strategy: one.status for one in RANK_FAULTS}
    for name in names:
        rows = {one.pass_: one for one in records if one.case.label == f"tests.fakes:{name}"}
        assert rows.keys() == {"parity", "timing", "memory"}
        assert rows["timing"].status == expected[name]
        assert rows["parity"].status == "ok"
    left = [path for path in tmp_path.iterdir() if path.name not in {"out", "suite.yaml"}]
    assert not [path for path in left if not is_torchs(path)]
    report = (tmp_path / "out" / "report.md").read_text()
    assert "exit code 17" in report
    assert "loss_not_finite" in report.replace("\\", "")


def test_a_machine_whose_name_nobody_knows(tmp_path: Path) -> None:
    unshare = ("unshare", "--uts", "sh", "-c", 'hostname nope.invalid && exec "$@"', "sh")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False).returncode
    ):
        pytest.skip("needs to give the machine another name for itself alone")
    (tmp_path / "suite.yaml").write_text(SUITE.format(strategies="'tests.fakes:UNWRAPPED'"))
    done = bench(
        "run", "suite.yaml", "--out", "out", "--filter", "world_size == 2",
        folder=tmp_path, prefix=unshare,
    )  # fmt: skip
    assert {one.status for one in read_records(tmp_path / "out")} == {"ok"}, done.stderr


def test_the_page_of_faults_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.faults"


def test_every_fault_names_a_test_that_shows_it() -> None:
    defined = {
        node.name
        for path in [*(ROOT / "tests").rglob("test_*.py"), ROOT / "tests" / "lab_faults.py"]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert {fault.shown_by for fault in FAULTS} <= defined
