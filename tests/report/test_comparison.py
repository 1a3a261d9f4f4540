from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.analyze.compare import Side, compared
from bench.cli import run_command_line
from bench.records.record import Record
from bench.records.store import Store
from bench.report.comparison import markdown
from tests.analyze.test_compare import ENVIRONMENT, FAILED, around, side
from tests.analyze.test_scaling import PAIR, SINGLE, launches
from tests.fakes import make_case
from tests.report.test_page import make_info


def folder(path: Path, records: list[Record], **environment: Any) -> Path:
    info = make_info()
    info.run_id, info.environment = path.name, ENVIRONMENT | environment
    with Store(path) as store:
        store.write_run(info)
        for record in records:
            store.append(msgspec.structs.replace(record, environment="e"))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folder(tmp_path / "base", [*around(SINGLE, 100), *around(PAIR, 200)])


def compare(*arguments: object) -> int:
    return run_command_line(["compare", *map(str, arguments)])


def test_a_regression_is_a_page_and_an_exit_code(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = folder(tmp_path / "new", [*around(SINGLE, 100), *around(PAIR, 150)])
    assert compare(base, new) == 0
    out = capsys.readouterr().out
    assert out.startswith("## 2 cases in both runs: 1 slower, 1 no clear difference")
    assert "| slower: -25.0% (" in out
    assert "| no clear difference, +0" in out
    assert "\n<details><summary>All pairs</summary>\n" in out
    assert compare(base, new, "--fail-on-regression", 20) == 1
    assert "**Regression**: 1 case clearly slower by 20 % or more." in capsys.readouterr().out
    assert compare(base, new, "--fail-on-regression", 30) == 0
    assert "No regression of 30 % or more was established." in capsys.readouterr().out


def test_noise_that_hides_a_regression_is_told(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = folder(tmp_path / "new", [*around(SINGLE, 100), *around(PAIR, 190, 0.2)])
    assert compare(base, new, "--fail-on-regression", 5) == 0
    found = capsys.readouterr()
    assert "**Noise is too large to see 5 %** in 1 case" in found.out
    assert "noise is too large to see 5 % in 1 of 2 cases" in found.err


def test_a_case_that_no_longer_runs_fails_the_check(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = launches(PAIR, 1, 1, 1, **FAILED)
    new = folder(tmp_path / "new", [*around(SINGLE, 100), *lost])
    assert compare(base, new) == 0
    assert compare(base, new, "--fail-on-regression", 5) == 1
    assert "1 case with a figure in BASE alone" in capsys.readouterr().out


def test_other_environments_are_refused_unless_asked_for(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = folder(tmp_path / "new", around(PAIR, 200), versions={"torch": "2.14"})
    assert compare(base, new) == 2
    assert "differ: versions.torch: 2.13 -> 2.14; --across-machines" in capsys.readouterr().err
    assert compare(base, new, "--across-machines") == 0
    out = capsys.readouterr().out
    assert "**The environments differ** (`--across-machines`)" in out
    assert "- versions.torch: 2.13 -\\> 2.14" in out
    assert f"1 case in base only: {SINGLE.id}".replace("_", "\\_") in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-on-regression", "0"], "0 is no share in percent"),
        (["--fail-on-regression", "nan"], "nan is no share in percent"),
        ([], "no case in common"),
    ],
)
def test_mistakes(
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    other = msgspec.structs.replace(PAIR, seed=9, id="other")
    assert compare(base, folder(tmp_path / "new", around(other, 1)), *arguments) == 2
    assert message in capsys.readouterr().err


def test_the_comparison_as_data_and_as_a_file(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = folder(tmp_path / "new", [*around(SINGLE, 100), *around(PAIR, 150)])
    out = tmp_path / "page.json"
    arguments = (base, new, "--json", "--fail-on-regression", 20, "--out", out)
    assert compare(*arguments) == 1
    assert capsys.readouterr().out == ""
    found = json.loads(out.read_text())
    assert found["fail_on_regression"]["regressions"] == [PAIR.id]
    (pair,) = [one for one in found["pairs"] if one["id"] == PAIR.id]
    assert pair["ratio"] == pytest.approx(0.75)
    assert pair["ratio_low"] < 0.75 < pair["ratio_high"]
    assert (pair["verdict"], pair["unit"]) == ("slower", "image")
    assert compare(base, new, "--out", tmp_path / "none" / "page.md") == 2


def test_names_from_files_stay_text(tmp_path: Path) -> None:
    hostile = msgspec.structs.replace(SINGLE, label="<script> | `x`", id="a|b<c>`d`")
    first = folder(tmp_path / "first", around(hostile, 100))
    second = folder(tmp_path / "second", around(hostile, 50))
    out = tmp_path / "page.md"
    assert compare(first, second, "--fail-on-regression", 99, "--out", out) == 0
    text = out.read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "\\<script\\> \\| \\`x\\`" in text


def test_a_page_fits_into_a_comment() -> None:
    (template,) = side(around(PAIR, 100)).rows
    cases = [make_case(strategy="ddp", world_size=2, seed=seed) for seed in range(400)]

    def run(name: str, rate: float) -> Side:
        figures = [rate * 0.999, rate, rate * 1.001]
        rows = [msgspec.structs.replace(template, case=one, figures=figures) for one in cases]
        return msgspec.structs.replace(side([], name), rows=rows)

    text = markdown(compared(run("first", 100), run("second", 50)))
    assert len(text) < 65_536
    assert "All pairs are more than a comment takes: `--json` has them." in text
    assert "And 300 more, less slow: `--json` has them." in text
