from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.cli import run_command_line
from bench.plan.case import identify
from bench.records.collectives import COLLECTIVES, Collective
from bench.records.record import Parity
from bench.records.store import Store
from tests.analyze.test_compare import around
from tests.analyze.test_scaling import PAIR, launches, parity
from tests.fakes import make_case
from tests.report.test_comparison import folder
from tests.report.test_page import make_info

RESNET = identify(
    msgspec.structs.replace(
        make_case(workload="resnet152", preset="full", strategy="ddp", world_size=2),
        workload_options={"image_size": 224},
        id="",
    )
)


def page_of(place: Path) -> str:
    assert run_command_line(["report", str(place), "--reference", "published"]) == 0
    return (place / "report.md").read_text(encoding="utf-8")


def cells_of(page: str, begin: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.startswith(begin))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_published_figures_stand_beside_ours_in_a_table_of_their_own(tmp_path: Path) -> None:
    page = page_of(folder(tmp_path / "run", around(RESNET, 290)))
    before, _, section = page.partition("### Published by others, not measured here")
    assert "302" not in before
    heading = next(line for line in section.splitlines() if line.startswith("|   devices"))
    headings = [cell.strip() for cell in heading.strip("|").split("|")]
    assert all(one.startswith(("published", "here")) for one in headings[1:])
    two = dict(zip(headings, cells_of(section, "|         2 |"), strict=True))
    assert two["published images/s"] == "302"
    assert two["published speedup"] == "1.94"
    assert two["here: ddp"].startswith("290 ± ")
    four = dict(zip(headings, cells_of(section, "|         4 |"), strict=True))
    assert four["here: ddp"] == "–"
    assert "- source: an article (in Chinese" in section
    assert "another batch of a device: 64 there, 4 here" in section
    assert "another input" not in section
    assert "- not measured here on 1, 4, 8 devices" in section
    assert "- contradiction: throughput times the time of an epoch is 268,788" in section


def test_without_being_asked_for_they_are_nowhere(tmp_path: Path) -> None:
    place = folder(tmp_path / "run", around(RESNET, 290))
    assert run_command_line(["report", str(place)]) == 0
    assert "ublished" not in (place / "report.md").read_text(encoding="utf-8")


def test_a_model_that_nobody_has_published(tmp_path: Path) -> None:
    page = page_of(folder(tmp_path / "run", around(PAIR, 100)))
    assert "No published table is of this model" in page
    assert "resnet152, resnet50" in page


def test_a_figure_that_failed_its_proof_says_so_here_too(tmp_path: Path) -> None:
    wrong = [*launches(RESNET, 290, 291), parity(RESNET, Parity(verdict="failed"))]
    page = page_of(folder(tmp_path / "run", wrong))
    assert "(failed its proof) |" in page


def test_curves_stand_beside_collectives(tmp_path: Path) -> None:
    common: dict[str, Any] = {"run_id": "r", "backend": "gloo", "device": "cpu", "dtype": "fp32"}
    made = Collective(
        **common, op="all_reduce", world_size=2, bytes=2**20, status="ok", median_s=0.5,
        back_to_back_s=0.5, back_to_back_busbw_bytes_per_s=2.5e9,
    )  # fmt: skip
    with Store(tmp_path, name=COLLECTIVES) as store:
        store.write_run(make_info())
        store.append(made)
    page = page_of(tmp_path)
    assert cells_of(page, "|      1,048,576 |") == ["1,048,576", "18", "39.93", "2.50"]
    assert "busbw exceed the link's own rate" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reference", "mine"], "--reference 'mine': the one that there is is called published"),
        (["--reference", "published", "--format", "csv"], "rows for programs are ours alone"),
    ],
)
def test_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    place = folder(tmp_path / "run", around(RESNET, 290))
    assert run_command_line(["report", str(place), *arguments]) == 2
    assert message in capsys.readouterr().err
