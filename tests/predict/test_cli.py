from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from bench.cli import run_command_line
from bench.predict.scoreboard import published_scores
from bench.records.lines import iterate_lines
from bench.records.record import Record
from bench.records.scaling import PREDICTED, PREDICTIONS
from bench.report.prediction import renewed
from tests.predict.made import profile, single

ROOT = Path(__file__).parents[2]
FIGURE = ["--model", "resnet50", "--throughput", "329", "--per-device-batch", "32"]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(profile(case=single(device="cuda"))))
    return path


@pytest.mark.parametrize("name", ["docs/prediction-scaling.md", "README.md"])
def test_published_tables_in_pages_are_not_stale(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert renewed(page, published_scores()) == page, (
        f"bench predict score --write {name} makes it anew"
    )
    assert "timeline: mean" in page


def test_from_a_profile_to_rows_that_say_what_they_are(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    told = ["predict", "scaling", "--profile", str(made), "--strategies", "ddp,fsdp"]
    assert run_command_line([*told, "--out", str(out), "--on", "2 x V100 NVLink"]) == 0
    shown = capsys.readouterr()
    assert "ddp, predicted:" in shown.out
    assert "report in" in shown.err
    rows = list(iterate_lines(out, PREDICTIONS, Record, lambda _: None))
    assert [row.case.world_size for row in rows] == [1, 2, 1, 2]
    assert all(row.flags == [PREDICTED] for row in rows)
    # A folder of predictions is no folder of measurements, and is not written twice.
    assert run_command_line(["report", str(out)]) == 2
    assert run_command_line([*told, "--out", str(out), "--on", "2 x V100 NVLink"]) == 2


def test_from_a_published_figure_to_the_quickest_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = ["predict", "scaling", *FIGURE, "--on", "8 x V100 NVLink"]
    assert run_command_line([*told, "--best"]) == 0
    assert capsys.readouterr().out.startswith("Predicted, not measured: ")
    assert run_command_line([*told, "--json", "--world-sizes", "8", "--strategies", "ddp"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["case"]["world_size"] == 8
    assert 0.9 < row["speedup"] / 8 < 1


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (["scaling"], "give a --profile"),
        (["scaling", *FIGURE, "--on", "eight"], "describes no devices"),
        (["scaling", *FIGURE, "--strategies", "fast"], "no schedule|unknown strategy"),
        (["scaling", *FIGURE, "--world-sizes", "many"], "no list of numbers"),
        (["scaling", "--profile", "nowhere.json"], "cannot be read"),
        (["score", "nowhere"], "a study has"),
        (["profile", "transformer:tiny", "--out", "nowhere/profile.json"], "no such folder"),
    ],
)
def test_mistakes_are_one_line(
    told: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["predict", *told]) == 2
    text = capsys.readouterr().err
    assert re.search(what, text)
    assert text.count("\n") == 1
