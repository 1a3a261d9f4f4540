from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from bench.cli import run_command_line
from bench.predict import memory
from bench.predict.memory_child import Question
from bench.records.prediction import MemoryForecast, PredictedBatch, PredictedMemory

GIB = 2**30


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """What a child would be asked; it answers 2 GiB."""
    questions: list[Question] = []

    def ask(these: Sequence[Question]) -> Iterator[PredictedMemory]:
        questions.extend(these)
        for one in these:
            batch = PredictedBatch(per_device_batch=3, too_large=4)
            has_limit = one.limit_bytes is not None
            yield PredictedMemory(
                case=one.case,
                peak_bytes=2 * GIB,
                by_category={"parameters": 2 * GIB},
                max_batch=batch if has_limit else None,
            )

    monkeypatch.setattr(memory, "ask", ask)
    return questions


def run(*words: str) -> int:
    return run_command_line(["predict", "memory", *words])


def test_settings_reach_the_cases(
    asked: list[Question], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        "transformer:tiny", "--strategies", "ddp(bucket_cap_mb=1), deepspeed", "--world-sizes",
        "8,1024", "--device-memory", "24GiB", "--allowance", "2GiB", "--precision", "bf16-amp",
        "--optimizer", "sgd", "--accumulation", "2", "--per-device-batch", "16",
        "--activation-checkpointing", "--json",
    )  # fmt: skip
    assert code == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=MemoryForecast)
    assert [(row.case.strategy, row.case.world_size) for row in found.rows] == [
        ("ddp", 8),
        ("ddp", 1024),
        ("deepspeed", 8),
        ("deepspeed", 1024),
    ]
    assert [row.reason is None for row in found.rows] == [True, True, False, False]
    case = asked[0].case
    assert (case.precision, case.optimizer, case.accumulation_steps) == ("bf16-amp", "sgd", 2)
    assert (case.per_device_batch, case.activation_checkpointing) == (16, True)
    assert case.options["bucket_cap_mb"] == 1
    assert {one.limit_bytes for one in asked} == {22 * GIB}
    assert found.fits(found.rows[0]) is True


def test_a_suite_serves_too(
    asked: list[Question], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("--suite", "smoke", "--device", "cpu", "--out", str(tmp_path / "out")) == 0
    assert {one.limit_bytes for one in asked} == {None}
    assert "Predicted, not measured" in capsys.readouterr().out
    assert (tmp_path / "out" / "memory-prediction.md").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a workload"),
        (["transformer:tiny", "--suite", "smoke"], "not both"),
        (["transformer:tiny", "--device-memory", "24 GB"], "is no size"),
        (["transformer:tiny", "--device-memory", "1GiB"], "nothing is left"),
        (["transformer:tiny", "--world-sizes", "0"], "world_sizes"),
        (["transformer:tiny", "--precision", "fp8"], "precision"),
    ],
)
def test_mistakes_are_one_line(
    asked: list[Question], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert asked == []
