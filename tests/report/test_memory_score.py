from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import RecordsError
from bench.records.prediction import MemoryScore, ScoredMemory
from bench.report.memory_score import BOUNDS, is_promised, load_score, markdown, misses
from tests.fakes import make_case
from tests.memory_prediction import BEGIN, DOCUMENT, END, STORED, written

SCORE = load_score(STORED)


def scored(strategy: str, measured: int, predicted: int) -> ScoredMemory:
    case = make_case(strategy=strategy)
    return ScoredMemory(case=case, measured_bytes=[measured], predicted_bytes=predicted)


def test_a_miss_is_beyond_its_strategys_bound() -> None:
    rows = [scored("ddp", 1000, 989), scored("fsdp", 1000, 1029), scored("single", 1000, 1009)]
    assert misses(rows) == rows[:1]
    assert "| ddp" in markdown(MemoryScore(torch="2", rows=rows))
    assert "Beyond what is promised: 1 of 3" in markdown(MemoryScore(torch="2", rows=rows))


def test_what_was_promised_is_kept() -> None:
    assert misses(SCORE.rows) == []


def test_all_that_was_promised_was_compared() -> None:
    promised = {
        (row.case.workload, row.case.preset, row.case.optimizer, row.case.strategy)
        for row in SCORE.rows
        if is_promised(row)
    }
    wanted = {
        (workload, preset, optimizer, strategy)
        for workload in ("resnet152", "transformer", "embedding")
        for preset in ("tiny", "cpu")
        for optimizer in ("sgd", "adamw")
        for strategy in BOUNDS
    }
    assert wanted <= promised


def test_the_document_is_made_from_the_stored_score() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert written(text, SCORE) == text, "run nox -s predict-memory -- predict"


def test_a_broken_score_is_named(tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    path.write_text("{")
    with pytest.raises(RecordsError, match=r"score\.json"):
        load_score(path)
