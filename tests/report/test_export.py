from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.cli import run_command_line
from bench.records.collectives import COLLECTIVES, Collective
from bench.records.record import Parity
from bench.records.store import Store
from bench.report.export import as_csv, flat
from tests.analyze.test_compare import FAILED, around
from tests.analyze.test_scaling import PAIR, SINGLE, launches, parity, row
from tests.fakes import make_case
from tests.report.test_comparison import folder
from tests.report.test_page import make_info

FSDP = make_case(strategy="fsdp", world_size=2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    records = [
        *around(SINGLE, 100),
        *around(PAIR, 180),
        *launches(FSDP, 1, **FAILED),
    ]
    return folder(tmp_path / "run", records)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run_command_line(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_csv_has_a_line_for_each_case_failed_ones_too(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = list(csv.DictReader(io.StringIO(printed(capsys, run, "--format", "csv"))))
    assert [line["label"] for line in lines] == ["single", "ddp", "fsdp"]
    ddp, failed = lines[1:]
    low, middle, high = (float(ddp[f"samples_per_s{end}"]) for end in ("_low", "", "_high"))
    assert low < 180 * 0.9999 < high
    assert middle == pytest.approx(180, rel=1e-3)
    assert float(ddp["units_per_s_per_device"]) == pytest.approx(90, rel=1e-3)
    assert float(ddp["speedup"]) == pytest.approx(1.8)
    assert (failed["status"], failed["reason"], failed["samples_per_s"]) == ("failed", "boom", "")


def test_json_of_several_runs_names_each(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, run, run, "--format", "json"))
    assert [one["run"] for one in found] == [str(run)] * 6
    assert found[1]["peak_resident_bytes"] == [3 * 2**30] * 2
    assert found[1]["parity"] == "exact"


def test_pytest_benchmark_compares_what_was_exported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = folder(tmp_path / "slower", [*around(SINGLE, 100), *around(PAIR, 90)])
    files = [tmp_path / "0001_base.json", tmp_path / "0002_new.json"]
    for place, out in zip((run, slower), files, strict=True):
        printed(capsys, place, "--format", "pytest-benchmark", "--out", out)
    command = [sys.executable, "-m", "pytest_benchmark", "compare", *map(str, files)]
    command += ["--columns", "mean,rounds", "--csv", str(tmp_path / "out")]
    read = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert PAIR.id in read.stdout
    (table,) = tmp_path.glob("out*.csv")
    lines = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
    base, new = sorted(float(line["mean"]) for line in lines if PAIR.id in line["name"])
    assert base == pytest.approx(PAIR.global_batch / 180, rel=1e-3)  # seconds of a step
    assert new == pytest.approx(2 * base)
    assert {line["rounds"] for line in lines} == {"3"}


def test_the_figures_are_those_that_pytest_benchmark_computes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = pytest.importorskip("pytest_benchmark.stats")
    (_, ddp) = json.loads(printed(capsys, run, "--format", "pytest-benchmark"))["benchmarks"]
    theirs = stats.Stats()
    for value in ddp["stats"]["data"]:
        theirs.update(value)
    for name in ("min", "max", "mean", "stddev", "median", "rounds", "ops", "total", "outliers"):
        assert ddp["stats"][name] == pytest.approx(getattr(theirs, name)), name
    assert ddp["stats"].keys() == {*stats.Stats.fields, "data", "iterations"}


def test_a_figure_that_failed_its_proof_is_no_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [*launches(PAIR, 9, 9), parity(PAIR, Parity(verdict="failed"))]
    place = folder(tmp_path / "wrong", wrong)
    assert json.loads(printed(capsys, place, "--format", "pytest-benchmark"))["benchmarks"] == []
    (line,) = csv.DictReader(io.StringIO(printed(capsys, place, "--format", "csv")))
    assert (line["is_struck_out"], line["parity"]) == ("True", "failed")


def test_rows_of_collectives_are_printed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common: dict[str, Any] = {"run_id": "r", "backend": "gloo", "device": "cpu", "dtype": "fp32"}
    made = Collective(**common, op="all_reduce", world_size=2, bytes=4, status="ok", median_s=0.5)
    with Store(tmp_path, name=COLLECTIVES) as store:
        store.write_run(make_info())
        store.append(made)
    (line,) = csv.DictReader(io.StringIO(printed(capsys, tmp_path, "--format", "csv")))
    assert (line["op"], line["median_s"]) == ("all_reduce", "0.5")
    assert run_command_line(["report", str(tmp_path), "--format", "pytest-benchmark"]) == 2


def test_text_is_no_formula() -> None:
    hostile = msgspec.structs.replace(PAIR, label="=HYPERLINK(1)", id="x")
    text = as_csv([flat("run", row(launches(hostile, 1, 1), hostile))])
    assert ",'=HYPERLINK(1)," in text


def test_a_folder_that_is_none_costs_the_others_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["report", str(tmp_path), str(run)]) == 2
    found = capsys.readouterr()
    assert found.out.strip() == str(run / "report.md")
    assert "holds no run.json" in found.err
