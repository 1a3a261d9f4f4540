"""The program as a user runs it: exit codes, messages, files, signals."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.cli import run_command_line
from bench.errors import OutputError
from bench.records.store import read_records, read_run
from bench.report import page
from bench.run.scratch import scratch

BENCH = [sys.executable, "-m", "bench"]
TINY = "workload == transformer and strategy == ddp"
FAST = """\
name: fast
defaults: {launches: 2, window: {min_steps: 4, max_s: 0.2, target_interval: 0.5}}
matrix: [{workloads: [transformer:tiny], strategies: [ddp], world_sizes: [2]}]
"""
SUITE = """\
name: slow
defaults: {launches: 3, window: {min_steps: 100000}}
matrix:
  - workloads: [transformer:tiny]
    strategies: [ddp]
    world_sizes: [2]
"""


def bench(*arguments: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(
        [*BENCH, *map(str, arguments)], text=True, check=False, cwd=cwd, **(pipes | options)
    )


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


class Here:
    """The program in this process, which has torch already; in a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Done:
        """Run a command."""
        self._capsys.readouterr()
        code = run_command_line([*map(str, arguments)])
        printed = self._capsys.readouterr()
        return Done(returncode=code, stdout=printed.out, stderr=printed.err)


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    monkeypatch.chdir(tmp_path)
    return Here(tmp_path, capsys)


@contextlib.contextmanager
def small_disk(folder: Path, *, size: str) -> Iterator[Path]:
    """A file system of its own; skips where none may be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_suite_becomes_records_a_table_and_a_report(tmp_path: Path) -> None:
    done = bench(
        "run", "smoke", "--filter", "workload == transformer", "--launches", "2", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("smoke-")
    assert str(Path("runs") / folder.name / "records.jsonl") in done.stdout
    assert "tokens/s" in done.stdout
    assert "left" in done.stderr

    records = read_records(folder)
    assert {record.status for record in records} == {"ok"}
    assert sum(record.pass_ == "timing" for record in records) == 10
    assert sum(record.case.twin for record in records) == 2
    assert "Noise floor: " in done.stdout
    assert sum(record.pass_ == "memory" for record in records) == 4
    assert all(r.parity.verdict == "exact" for r in records if r.parity is not None)
    costs = {r.case.strategy: r.communication for r in records if r.communication is not None}
    assert costs.keys() == {"dp", "ddp", "fsdp"}
    assert all(cost.busy_s for cost in costs.values())
    assert costs["ddp"].sync_cost_s is not None
    assert costs["ddp"].bucket_bytes
    assert read_run(folder).ended_by == "complete"
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "weak scaling" in text.lower()
    assert text.count("](charts/") == 8
    assert "reference_implementation" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if "----" in line) <= 80


MISTAKES = [
    (["run", "quik"], "bench: no suite or file 'quik'; did you mean 'quick'"),
    (["plan", "bad.yaml"], "bench: bad.yaml: matrix[0].strategies[0]: unknown strategy 'dpp'"),
    (["plan", "smoke", "--filter", "seed == 9"], "bench: smoke.yaml: no case matches"),
    (["plan", "smoke", "--filter", "x"], "bench: filter 'x' cannot be read: 'x' compares nothing"),
    (["run", "smoke", "--resume"], "bench: --resume needs the --out folder"),
    (["report", "nothing"], "bench: nothing: no such folder"),
    (["report", "."], "bench: .: holds no run.json"),
]
MISTAKES_OF_A_RUN = [
    (["run", "bad.yaml"], "bench: bad.yaml: matrix[0].strategies[0]: unknown strategy 'dpp'"),
    (["run", "smoke", "--out", "file/results"], "bench: file/results: cannot be written"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with a file where no folder can be, and a suite that cannot be read."""
    (tmp_path / "file").write_text("")
    (tmp_path / "bad.yaml").write_text(
        "matrix: [{workloads: [transformer:tiny], strategies: [dpp]}]\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_command_line(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)
    assert sorted(path.name for path in folder.iterdir()) == ["bad.yaml", "file"]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES_OF_A_RUN)
def test_a_mistake_starts_nothing(
    here: Here, folder: Path, arguments: list[str], message: str
) -> None:
    done = here(*arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(message)
    assert len([line for line in done.stderr.splitlines() if line.startswith("bench:")]) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["bad.yaml", "file"]


def test_a_rank_that_leaves_quietly_does_not_hang_the_run(tmp_path: Path) -> None:
    (tmp_path / "quiet.yaml").write_text(
        "defaults: {launches: 1, window: {min_steps: 4, max_s: 0.2}, timeout_s: 120}\n"
        "matrix: [{workloads: [transformer:tiny], world_sizes: [2],"
        " strategies: ['tests.fakes:QUIET']}]\n"
    )
    begin = time.monotonic()
    done = bench(
        "run",
        "quiet.yaml",
        "--out",
        "out",
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 1, done.stderr
    assert time.monotonic() - begin < 100
    (failed,) = [r for r in read_records(tmp_path / "out") if r.pass_ == "timing"]
    assert failed.status == "failed"
    assert failed.reason is not None
    assert "exit code 0 and no result" in failed.reason
    assert list(tmp_path.glob("*.pickle")) == []


def test_a_disk_that_fills_up_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = bench("list", "suites", cwd=tmp_path, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("bench: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["run"], ["run", "smoke", "--launches", "0"], ["nonsense"]])
def test_wrong_usage_is_exit_code_2(tmp_path: Path, arguments: list[str]) -> None:
    done = bench(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_dry_run_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["run", "quick", "--dry-run"]) == 0
    assert "cases: 21, 0 of them skipped; launches: 108" in capsys.readouterr().out
    assert run_command_line(["run", "quick", "--dry-run", "--launches", "9"]) == 0
    assert "launches: 234" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_skips_are_rows_with_their_reason(here: Here, tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text(
        "matrix: [{workloads: [resnet152], strategies: [single, ddp], world_sizes: [1, 8],"
        " device: cuda}]\n"
    )
    done = here("run", "gpu.yaml", "--out", "out")
    assert done.returncode == 0, done.stderr
    records = read_records(tmp_path / "out")
    assert [record.status for record in records] == ["skipped"] * 3
    assert records[-1].reason == "needs 8 cuda devices, found 0"
    assert "needs 8 cuda devices, found 0" in (tmp_path / "out" / "report.md").read_text()


def test_failures_and_failed_proofs_are_exit_code_1(here: Here, tmp_path: Path) -> None:
    (tmp_path / "faulty.yaml").write_text(
        "defaults: {launches: 1, window: {min_steps: 4, max_s: 0.2, target_interval: 0.5}}\n"
        "matrix: [{workloads: [transformer:tiny], world_sizes: [2],"
        " strategies: ['tests.fakes:LOCAL', 'tests.fakes:RAISE', ddp]}]\n"
    )
    done = here("run", "faulty.yaml", "--out", "out")
    assert done.returncode == 1, done.stderr
    records = read_records(tmp_path / "out")
    by_label = {r.case.label: r for r in records if r.pass_ == "timing"}
    assert by_label["tests.fakes:RAISE"].status == "failed"
    reason = by_label["tests.fakes:RAISE"].reason
    assert reason is not None
    assert reason.startswith("rank 1 of 2, in warm-up: ValueError: deliberate")
    assert "\x1b" not in (tmp_path / "out" / "records.jsonl").read_text()
    assert by_label["ddp"].status == "ok"
    proofs = {r.case.label: r.parity for r in records if r.parity is not None}
    assert proofs["tests.fakes:LOCAL"].verdict == "failed"
    assert proofs["ddp"].verdict == "exact"
    report = (tmp_path / "out" / "report.md").read_text()
    assert "~~" in report


def test_resuming_runs_only_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "fast.yaml").write_text(FAST)
    command = ["run", "fast.yaml", "--out", "out"]
    first = bench(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    path = tmp_path / "out" / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])  # a crash in the middle of a line
    again = bench(*command, cwd=tmp_path)
    assert again.returncode == 2
    assert "holds results already" in again.stderr
    resumed = bench(*command, "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{len(lines) - 2} launches" in resumed.stderr
    keys = [record.key for record in read_records(tmp_path / "out")]
    assert len(keys) == len(set(keys)) == len(lines)


def test_two_suites_at_once_do_not_break_each_other(tmp_path: Path) -> None:
    (tmp_path / "fast.yaml").write_text(FAST)
    command = [*BENCH, "run", "fast.yaml", "--launches", "1"]
    runs = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for one in runs:
        _, errors = one.communicate(timeout=200)
        assert one.returncode == 0, errors
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert {record.status for record in read_records(folder)} == {"ok"}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A run in the middle of its first long window, and all its descendants."""
    (tmp_path / "slow.yaml").write_text(SUITE)
    with subprocess.Popen(
        [*BENCH, "run", "slow.yaml", "--out", "out"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[1/"):
                break
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any('"window"' in phase.read_text() for phase in tmp_path.glob("*/*/rank1.phase")):
                break
            time.sleep(0.1)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3  # the fork server and two ranks
        yield process, children
        if process.poll() is None:
            process.kill()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_run_with_a_row(
    tmp_path: Path,
    running: tuple[subprocess.Popen[str], list[psutil.Process]],
    number: signal.Signals,
    code: int,
) -> None:
    process, children = running
    process.send_signal(number)
    assert process.wait(timeout=20) == code
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    records = read_records(tmp_path / "out")
    assert [record.status for record in records] == ["ok", "interrupted"]
    assert records[-1].reason == f"by {number.name}"
    assert read_run(tmp_path / "out").ended_by == number.name
    assert (tmp_path / "out" / "report.md").exists()
    assert process.stderr is not None
    assert "--resume --out out goes on" in process.stderr.read()
    assert list(tmp_path.glob("bench-*")) == []


def test_further_signals_do_not_disturb_the_tidying(
    tmp_path: Path, running: tuple[subprocess.Popen[str], list[psutil.Process]]
) -> None:
    process, children = running
    for _ in range(4):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert process.wait(timeout=20) == 130
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert [one.status for one in read_records(tmp_path / "out")] == ["ok", "interrupted"]
    assert list(tmp_path.glob("bench-*")) == []


def test_workers_die_with_a_launcher_that_is_killed(
    tmp_path: Path,
    running: tuple[subprocess.Popen[str], list[psutil.Process]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if sys.platform != "linux":
        pytest.skip("the death signal is Linux's")
    process, children = running
    process.kill()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert [record.status for record in read_records(tmp_path / "out")] == ["ok"]
    # What it could not tidy, the next run does.
    assert list(tmp_path.glob("pymp-*")) == []
    (left,) = tmp_path.glob("bench-*")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch() as folder:
        assert folder.parent == tmp_path
        assert not left.exists()


def test_a_run_whose_reader_is_gone_goes_on(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*BENCH, "run", "smoke", "--filter", "strategy == single", "--launches", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert any("loading PyTorch" in line for line in process.stderr)  # and no more is read
        process.stderr.close()
        process.stdout.close()
        assert process.wait(timeout=200) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert [one.pass_ for one in read_records(folder)] == ["parity", "timing", "memory"]
    assert read_run(folder).ended_by == "complete"
    assert (folder / "report.md").exists()


MANY_SKIPS = (
    "matrix: [{workloads: [resnet152], strategies: [single], device: cuda,"
    f" per_device_batch: {list(range(1, 101))}}}]\n"
)


def test_a_full_disk_ends_the_run_in_one_line(here: Here, tmp_path: Path) -> None:
    (tmp_path / "skips.yaml").write_text(MANY_SKIPS)
    with small_disk(tmp_path / "disk", size="200k") as disk:
        done = here("run", "skips.yaml", "--out", disk / "out")
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"bench: {disk / 'out'}: cannot be written: No space left on device")
        before = read_records(disk / "out")
        assert 0 < len(before) < 100
        assert (disk / "out" / "records.jsonl").read_bytes().endswith(b"\n")
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        again = here("run", "skips.yaml", "--out", disk / "out", "--resume")
        assert again.returncode == 0, again.stderr
        records = read_records(disk / "out")
        assert len({one.case.id for one in records}) == len(records) == 100


def test_a_report_that_cannot_be_written_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_report(folder: Path) -> Path:
        raise OutputError(f"{folder}/charts: cannot be written: No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "write_report", write_report)
    (tmp_path / "skips.yaml").write_text(MANY_SKIPS)
    assert run_command_line(["run", "skips.yaml", "--out", "out"]) == 1
    printed = capsys.readouterr()
    assert "skipped" in printed.out
    assert "bench: no report: out/charts: cannot be written: No space left on device" in printed.err
    assert "bench report out makes it once it can" in printed.err
    assert len(read_records(tmp_path / "out")) == 100


def test_a_disk_that_can_only_be_read_is_refused(here: Here, tmp_path: Path) -> None:
    (tmp_path / "skips.yaml").write_text(MANY_SKIPS)
    with small_disk(tmp_path / "disk", size="128k") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        done = here("run", "skips.yaml", "--out", disk / "out")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"bench: {disk / 'out'}: cannot be written: Read-only file system"
    )


def test_a_suite_that_has_changed_is_not_gone_on_with(here: Here, tmp_path: Path) -> None:
    suite = tmp_path / "skips.yaml"
    text = (
        "defaults: {launches: 3, per_device_batch: %d, window: {max_s: %g}}\n"
        "matrix: [{workloads: [resnet152], strategies: [single, ddp], device: cuda}]\n"
    )
    suite.write_text(text % (4, 5))
    assert here("run", "skips.yaml", "--out", "out").returncode == 0
    suite.write_text(text % (8, 5))
    done = here("run", "skips.yaml", "--out", "out", "--resume")
    assert done.returncode == 2
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("bench:")]
    assert "this is not the plan that was started there" in line
    assert line.count("case.per_device_batch 4 -> 8, case.global_batch 4 -> 8") == 2


def test_listings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["list", "workloads"]) == 0
    assert "resnet152:full  batch 64 of 224 x 224" in capsys.readouterr().out
    assert run_command_line(["list", "strategies"]) == 0
    assert "bucket_cap_mb: number above 0 | null; default null\n" in capsys.readouterr().out
    assert run_command_line(["list", "suites", "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert names == sorted(names)
    assert "quick" in names
    assert run_command_line(["plan", "smoke", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned[0]["case"]["strategy"] == "single"


def test_output_survives_a_terminal_without_unicode(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text(
        "matrix: [{workloads: [resnet152], strategies: [single], device: cuda}]\n"
    )
    done = bench(
        "run",
        "gpu.yaml",
        "--out",
        "out",
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
