from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bench.plan.case import Case
from bench.records.prediction import MemoryForecast, PredictedBatch, PredictedMemory
from bench.report.memory_prediction import DATA, page, table, write_forecast
from tests.fakes import make_case

GIB = 2**30


def row(strategy: str, world_size: int, peak_gib: float, **changes: Any) -> PredictedMemory:
    case: Case = make_case(strategy=strategy, world_size=world_size, device="cuda")
    fields: dict[str, Any] = {
        "case": case,
        "peak_bytes": round(peak_gib * GIB),
        "by_category": {
            "parameters": GIB,
            "buckets": GIB // 2,
            "activations": round(peak_gib * GIB) - 3 * GIB // 2,
        },
    }
    return PredictedMemory(**(fields | changes))


def forecast(*rows: PredictedMemory, memory_gib: int | None = 4) -> MemoryForecast:
    return MemoryForecast(
        torch="2.14.1",
        device_memory_bytes=None if memory_gib is None else memory_gib * GIB,
        allowance_bytes=GIB,
        rows=list(rows),
    )


def cells(text: str, line: int) -> list[str]:
    return [cell.strip() for cell in text.splitlines()[2 + line].strip("|").split("|")]


def test_a_case_fits_with_its_allowance() -> None:
    rows = [
        row("ddp", 2, 3.0, max_batch=PredictedBatch(per_device_batch=64, too_large=66)),
        row("ddp", 4, 3.25, max_batch=PredictedBatch(per_device_batch=None, too_large=1)),
    ]
    text = table(forecast(*rows), rows)
    assert cells(text, 0) == ["ddp", "2", "3", "1", "0.5", "1.5", "yes", "64 (less than 66)"]
    assert cells(text, 1) == ["ddp", "4", "3.25", "1", "0.5", "1.75", "no", "none"]


def test_without_a_device_nothing_fits_or_does_not() -> None:
    text = page(forecast(row("ddp", 2, 3.0), memory_gib=None))
    assert "| fits" not in text
    assert "in none of the figures" in text


def test_what_is_not_predicted_is_a_line_with_its_reason() -> None:
    unknown = PredictedMemory(case=make_case(strategy="deepspeed"), reason="reads | its tensors")
    text = page(forecast(unknown))
    assert "not predicted" in text
    assert "- deepspeed on 1: reads \\| its tensors" in text


def test_every_figure_is_marked_as_predicted() -> None:
    text = page(forecast(row("ddp", 2, 3.0)))
    assert text.startswith("# Predicted memory")
    assert "Predicted, not measured" in text
    assert "predicted peak" in text


def test_page_charts_and_data_are_written(tmp_path: Path) -> None:
    made = forecast(row("ddp", 2, 3.0), row("ddp", 4, 3.0), row("fsdp", 4, 2.0))
    path = write_forecast(made, tmp_path)
    names = sorted(one.name for one in (tmp_path / "charts").iterdir())
    assert [name for name in names if name.endswith(".svg")] == [
        "predicted-memory-1-over.svg",
        "predicted-memory-1-parts.svg",
    ]
    assert all(f"charts/{name}" in path.read_text() for name in names if name.endswith(".svg"))
    read = msgspec.json.decode((tmp_path / DATA).read_bytes(), type=MemoryForecast)
    assert read == made
    assert read.kind == "predicted"
