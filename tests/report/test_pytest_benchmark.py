from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.report.index import newest
from bench.report.page import load
from bench.report.pytest_benchmark import document, stats

RESULTS = Path(__file__).parents[2] / "results"


def quick() -> Path:
    """The published run of that suite."""
    found = newest("quick", RESULTS)
    assert found is not None
    return found


def test_figures_of_three_launches() -> None:
    found = stats([2.0, 1.0, 3.0])
    assert (found["min"], found["max"], found["mean"], found["median"]) == (1.0, 3.0, 2.0, 2.0)
    assert (found["q1"], found["q3"], found["iqr"]) == (1.5, 2.5, 1.0)
    assert (found["stddev"], found["ops"], found["total"], found["rounds"]) == (1.0, 0.5, 6.0, 3)
    assert found["outliers"] == "0;0"
    assert found["data"] == [2.0, 1.0, 3.0]


def test_one_launch_has_no_scatter() -> None:
    found = stats([4.0])
    assert (found["stddev"], found["iqr"], found["ops"]) == (0.0, 0.0, 0.25)


def test_a_benchmark_is_a_row_and_its_rounds_are_launches() -> None:
    info, _, rows = load(quick())
    made = document([("tests/test_x.py::test_y", info, rows)])
    (row,) = (row for row in rows if row.case.label == "dp" and row.case.workload == "resnet152")
    (one,) = (b for b in made["benchmarks"] if b["extra_info"]["id"] == row.case.id)
    assert one["fullname"] == f"tests/test_x.py::test_y::{row.case.id}"
    assert one["stats"]["rounds"] == len(row.launches)
    # 4 samples a step over the samples per second of each launch.
    assert one["stats"]["data"] == [4 / launch.figure for launch in row.launches]
    with pytest.raises(ValueError, match="nothing was measured"):
        document([])


def test_pytest_benchmark_itself_reads_it(tmp_path: Path) -> None:
    program = shutil.which("pytest-benchmark", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("pytest-benchmark is not installed")
    info, _, rows = load(quick())
    for name in ("before", "after"):
        (tmp_path / f"{name}.json").write_text(json.dumps(document([("", info, rows)])))
    done = subprocess.run(
        [program, "compare", "before.json", "after.json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    names = [row.case.id for row in rows if row.launches]
    assert names
    for name in names:
        assert done.stdout.count(name) >= 2  # before and after
