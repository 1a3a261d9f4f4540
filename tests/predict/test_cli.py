from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from bench.cli import run_command_line
from bench.predict.measured import boards
from bench.predict.scoreboard import published_scores
from bench.predict.study import read_study
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


STUDY = ROOT / "results" / "prediction-study"


@pytest.mark.filterwarnings("ignore:nothing is fitted")  # where cells kept for it are too noisy
@pytest.mark.parametrize("name", ["docs/prediction.md", "README.md"])
def test_tables_of_predictions_in_pages_are_not_stale(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    found = boards(read_study(STUDY)) if STUDY.is_dir() else None
    study = f" {STUDY.relative_to(ROOT)}" if found else ""
    assert renewed(page, published_scores(), found) == page, (
        f"bench predict score{study} --write {name} makes it anew"
    )
    assert "timeline: mean" in page
    assert "<!-- measured here" in page


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


def test_score_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["predict", "--score", "nowhere"]) == 2
    assert "a study has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (["transformer:tiny", "--predict"], "give the --throughput of one such device"),
        (["transformer:tiny", "--predict", "--on", "1 x V100 NVLink"], "nothing to choose"),
        (["transformer:tiny", "--predict", "--devices", "8"], "--on says how many"),
        (["nowhere.json", "--predict"], "cannot be read"),
        (["somewhere", "--throughput", "3"], "--throughput: is for --predict alone"),
        (["dpp", "--predict", "--throughput", "3", "--per-device-batch", "4"], "dpp"),
    ],
)
def test_mistakes_in_asking_for_advice_are_one_line(
    told: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["recommend", *told]) == 2
    text = capsys.readouterr().err
    assert re.search(what, text)
    assert text.count("\n") == 1


def test_a_profile_of_a_processor_is_no_ground_for_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(profile()))
    assert run_command_line(["recommend", str(path), "--predict"]) == 2
    assert "is of a CPU" in capsys.readouterr().err
    assert run_command_line(["recommend", str(path), "--predict", "--precision", "bf16"]) == 2
    assert "the profile says that" in capsys.readouterr().err
