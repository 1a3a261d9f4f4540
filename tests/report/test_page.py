from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.analyze.scaling import rows_of
from bench.errors import OutputError, RecordsError
from bench.records.record import RunInfo
from bench.records.store import Store
from bench.report.page import slowest_link, write_report
from bench.report.summary import summary
from tests.analyze.test_scaling import PAIR, SINGLE, launches, parity, timing
from tests.test_architecture import WITHOUT_TORCH


def make_info() -> RunInfo:
    return RunInfo(
        run_id="r",
        suite={"name": "made", "description": "A made-up run.", "planned": []},
        environment={"cpu": "a CPU", "cores": [0, 1], "devices": [], "memory_bytes": 2**34},
        environment_fingerprint="e",
        seed=7,
        versions={"torch": "2.9"},
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:05:00+00:00",
        ended_by="complete",
    )


def make_folder(folder: Path, **changes: Any) -> Path:
    with Store(folder) as store:
        store.write_run(make_info())
        for record in [
            *launches(SINGLE, 99, 100, 101, **changes),
            *launches(PAIR, 179, 180, 181, **changes),
        ]:
            store.append(record)
        store.append(parity(PAIR))
    return folder


def test_the_report_holds_the_table(tmp_path: Path) -> None:
    text = write_report(make_folder(tmp_path)).read_text(encoding="utf-8")
    scaling, details = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if "| ddp " in line
    ]
    assert scaling[:6] == ["2", "ddp", "exact", "180 ± 3", "1.80 (1.76-1.84)", "90%"]
    assert details[:4] == ["2", "ddp <sup>[1]</sup>", "–", "44.4 / 44.4 / 44.4"]
    assert "2 cases: 2 measured. 6 timed launches." in text
    assert "a CPU, 2 cores used, 16.0 GiB" in text


def test_the_same_records_give_the_same_report(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


def test_a_report_is_rebuilt_without_torch(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    script = (
        f"{WITHOUT_TORCH}\nfrom bench.cli import run_command_line\n"
        f"sys.exit(run_command_line(['report', {str(folder)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder / "report.md")
    assert (folder / "report.md").exists()


def test_a_report_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="no such folder"):
        write_report(tmp_path / "none")


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "report.md").mkdir()
    with pytest.raises(OutputError, match=r"report\.md: cannot be written"):
        write_report(folder)


def test_the_report_says_where_it_was_measured(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    info = make_info()
    info.environment |= {
        "system": "Linux 6.1 x86_64",
        "driver": "580.95.05",
        "governors": ["performance"],
        "boost": False,
        "quota_cores": 1.5,
        "container": "docker",
        "virtualised": True,
        "commit": "abc123-dirty",
    }
    (folder / "run.json").write_bytes(msgspec.json.encode(info))
    text = write_report(folder).read_text(encoding="utf-8")
    assert "- accelerators: none; driver 580.95.05\n" in text
    assert (
        "x86\\_64, in a container (docker), on a virtual machine; a quota of 1.5 cores; "
        "clock governor performance; boost off\n"
    ) in text
    assert "; commit abc123-dirty\n" in text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("devices", [{}]),
        ("devices", 3),
        ("memory_bytes", "x"),
        ("cores", None),
        ("cpu", None),
        ("governors", 1),
        ("boost", "x"),
        ("container", [1]),
        ("commit", 3),
    ],
)
def test_an_environment_of_odd_shape_is_no_obstacle(
    tmp_path: Path, field: str, value: object
) -> None:
    folder = make_folder(tmp_path / "run")
    info = make_info()
    info.environment[field] = value
    (folder / "run.json").write_bytes(msgspec.json.encode(info))
    assert "| ddp" in write_report(folder).read_text(encoding="utf-8")


def test_a_plan_that_is_none_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run")
    info = make_info()
    info.suite["planned"] = [{"case": 1}]
    (folder / "run.json").write_bytes(msgspec.json.encode(info))
    with pytest.raises(RecordsError, match=r"run.json: suite.planned: .*\[0\].case"):
        write_report(folder)


def test_the_summary_says_what_was_spent_where_intervals_were_wide() -> None:
    effort = {"launches": 2, "launch_interval": 0.5}
    info = make_info()
    info.suite |= {"budget_s": 60.0, "planned": [{"case": {"id": PAIR.id}, "effort": effort}]}
    records = [timing(PAIR, 180 + launch, launch, elapsed_s=4.0) for launch in range(5)]
    text = summary(info, records, rows_of([], records))
    assert (
        "5 timed launches. 3 of them beyond the plan's, where intervals were wider than asked: "
        "12 s of a budget of 60 s; 0 intervals still wider than asked." in text
    )
    effort["launch_interval"] = 0.001
    assert "; 1 interval still wider than asked." in summary(info, records, rows_of([], records))
    for odd in (0.0, -5, "x", None):
        info.suite["budget_s"] = odd
        assert "budget" not in summary(info, records, rows_of([], records))


def test_the_summary_says_that_the_machine_drifted() -> None:
    records = [timing(PAIR, 100 * 0.99**launch, launch) for launch in range(8)]
    text = summary(make_info(), records, rows_of([], records))
    assert "From the first launch to the last all became 6.8% slower: figures are " in text


@pytest.mark.parametrize(
    ("devices", "rate"),
    [
        ([], None),
        ([{"name": "a", "link_bytes_per_s": 3e9}, {"name": "b", "link_bytes_per_s": 2e9}], 2e9),
        ([{"name": "a", "link_bytes_per_s": 3e9}, {"name": "b"}], None),
        (["a"], None),
        (None, None),
    ],
)
def test_the_slowest_link_is_known_only_where_all_are(devices: Any, rate: float | None) -> None:
    assert slowest_link({"devices": devices}) == rate
