from __future__ import annotations

import ast
import json
from pathlib import Path

import msgspec
import pytest

from bench.cli import run_command_line
from bench.plan.case import identify
from bench.records.record import Record
from tests.analyze.test_compare import FAILED, around
from tests.analyze.test_scaling import PAIR, SINGLE, launches
from tests.fakes import make_case
from tests.report.test_comparison import folder

CAPPED = identify(
    msgspec.structs.replace(PAIR, options={"bucket_cap_mb": 4}, label="ddp(bucket_cap_mb=4)", id="")
)
FSDP = make_case(strategy="fsdp", world_size=2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    records = [
        *around(SINGLE, 100),
        *around(PAIR, 180),
        *around(CAPPED, 250),
        *launches(FSDP, 1, **FAILED),
    ]
    return folder(tmp_path / "run", records)


def recommend(*arguments: object) -> int:
    return run_command_line(["recommend", *map(str, arguments)])


def test_the_page_has_the_choice_its_reason_and_its_program(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recommend(run, "--memory-gib", 24, "--devices", 2) == 0
    page = capsys.readouterr().out
    assert page.startswith("# What to use on 2 devices, 24 GiB each\n")
    assert "**ddp(bucket\\_cap\\_mb=4)** on 2 devices." in page
    assert "- Why: the fastest of 2 eligible rows: 250 ± " in page
    assert "- Speedup over one device: 2.50 (" in page
    assert "- Runner-up: ddp, 180 ± " in page
    assert "; the choice is clearly faster, by +38.9% (" in page
    assert "- fsdp: failed: boom" in page
    program = page.partition("```python\n")[2].partition("```")[0]
    (call,) = [
        node for node in ast.walk(ast.parse(program))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "DistributedDataParallel"
    ]  # fmt: skip
    assert [ast.unparse(one) for one in call.keywords] == ["bucket_cap_mb=4"]


def test_the_answer_as_data(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recommend(run, "--json") == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["choice"]["label"] == "ddp(bucket_cap_mb=4)"
    assert answer["devices"] == 2
    assert answer["fastest"] == CAPPED.id
    assert answer["runner_up"] == PAIR.id
    assert [one["verdict"] for one in answer["eligible_beside_the_fastest"]] == ["faster"]
    assert "bucket_cap_mb=4" in answer["code"]
    out = tmp_path / "page.md"
    assert recommend(run, "--out", out) == 0
    assert "```python" in out.read_text(encoding="utf-8")


def test_a_setting_that_brings_nothing_clear_is_not_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder(tmp_path / "close", [*around(PAIR, 180), *around(CAPPED, 181)])
    assert recommend(place) == 0
    page = capsys.readouterr().out
    assert "**ddp** on 2 devices." in page
    assert "noise does not tell it from the one with the highest figure, ddp(bucket\\_" in page
    assert "needs the least memory" not in page  # all need as much
    assert "and it has fewer settings, on the most devices measured, 2: 180 ± " in page
    assert "- Runner-up: ddp(bucket\\_cap\\_mb=4), 181 ± " in page
    assert "; no clear difference, +0.6% (" in page
    assert "bucket_cap_mb" not in page.partition("```python")[2]


def test_a_memory_that_nothing_fits_is_an_answer_with_exit_code_1(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recommend(run, "--memory-gib", 1) == 1
    page = capsys.readouterr().out
    assert "**No recommendation**: none of 3 rows on 2 is eligible." in page
    assert "needs 3 GiB of 1 GiB (resident memory)" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "8"], "nothing was measured on 8 devices, only on 1, 2"),
        (["--memory-gib", "-1"], "-1 is no size of a memory"),
        (["--memory-gib", "nan"], "nan is no size of a memory"),
    ],
)
def test_mistakes(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert recommend(run, *arguments) == 2
    assert message in capsys.readouterr().err


def held(records: list[Record], mebibytes: int) -> list[Record]:
    """With so much resident memory on each device."""
    return [
        record
        if record.memory is None
        else msgspec.structs.replace(
            record,
            memory=msgspec.structs.replace(
                record.memory, peak_process_bytes=[mebibytes * 2**20] * record.case.world_size
            ),
        )
        for record in records
    ]


@pytest.mark.parametrize(("other", "is_told"), [(600, False), (500, True)])
def test_less_memory_is_named_where_it_is_more_than_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: int, is_told: bool
) -> None:
    place = folder(
        tmp_path / "run", [*held(around(PAIR, 181), 616), *held(around(CAPPED, 180), other)]
    )
    assert recommend(place) == 0
    page = capsys.readouterr().out
    assert "**ddp** on 2 devices." in page
    assert "- Why: the highest figure of 2 eligible rows, on the most devices measured, 2" in page
    assert ("needs the least memory: 0.488 GiB in the median launch" in page) is is_told
