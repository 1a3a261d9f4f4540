"""How wrong predictions of memory were, where they could be compared with a measured peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from tabulate import tabulate

from bench.errors import RecordsError
from bench.records.prediction import MemoryScore, ScoredMemory
from bench.report.markup import escape

BOUNDS: Mapping[str, float] = {"single": 0.01, "ddp": 0.01, "fsdp": 0.03}
"""Largest relative error that is promised of a strategy at its defaults."""
MIB = 2**20
APART = 0.995
"""Least over most, below which devices are shown apart."""
HEADS = ("model", "strategy", "devices", "settings", "measured, MiB", "predicted, MiB", "error")


def load_score(path: Path) -> MemoryScore:
    """Read a stored score.

    Raises:
        RecordsError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=MemoryScore)
    except (OSError, msgspec.DecodeError) as error:
        raise RecordsError(f"{path}: {error}") from error


def is_promised(row: ScoredMemory) -> bool:
    """Whether a bound is given for the row: a strategy at its defaults, in fp32."""
    case = row.case
    is_plain = case.precision == "fp32" and case.accumulation_steps == 1
    is_plain = is_plain and not case.activation_checkpointing and case.label == case.strategy
    return is_plain and case.strategy in BOUNDS


def misses(rows: Sequence[ScoredMemory]) -> list[ScoredMemory]:
    """Rows whose error is beyond what is promised of their strategy."""
    return [row for row in rows if is_promised(row) and abs(row.error) > BOUNDS[row.case.strategy]]


def markdown(score: MemoryScore) -> str:
    """The whole score: what was promised and kept, then every row."""
    promised = [row for row in score.rows if is_promised(row)]
    others = [row for row in score.rows if not is_promised(row)]
    missed = misses(score.rows)
    return "\n\n".join(
        [
            f"torch {score.torch}, {len(score.rows)} cases measured on a CPU over gloo.",
            _summary(promised),
            f"Beyond what is promised: {len(missed)} of {len(promised)}.",
            "Strategies at their defaults:",
            _table(promised),
            "Settings, of which nothing is promised:",
            _table(others),
        ]
    )


def _summary(rows: Sequence[ScoredMemory]) -> str:
    body = []
    for strategy, bound in BOUNDS.items():
        errors = [abs(row.error) for row in rows if row.case.strategy == strategy]
        if errors:
            mean = sum(errors) / len(errors)
            body.append(
                [strategy, len(errors), _percent(mean), _percent(max(errors)), f"{bound:.0%}"]
            )
    heads = ["strategy", "cases", "mean error", "largest", "promised"]
    return tabulate(body, heads, tablefmt="github", disable_numparse=True)


def _table(rows: Sequence[ScoredMemory]) -> str:
    alignment = ["left", "left", "right", "left", "right", "right", "right"]
    body = [
        [
            f"{row.case.workload}:{row.case.preset}",
            escape(row.case.label),
            str(row.case.world_size),
            _settings(row),
            _measured(row),
            f"{row.predicted_bytes / MIB:.2f}",
            f"{row.error:+.2%}",
        ]
        for row in rows
    ]
    return tabulate(body, HEADS, tablefmt="github", disable_numparse=True, colalign=alignment)


def _measured(row: ScoredMemory) -> str:
    """The device that held most; where others held clearly less, the least of them too."""
    most, least = max(row.measured_bytes) / MIB, min(row.measured_bytes) / MIB
    return f"{most:.2f}" if least > APART * most else f"{most:.2f} (least {least:.2f})"


def _settings(row: ScoredMemory) -> str:
    case = row.case
    words = {
        case.optimizer: True,
        case.precision: case.precision != "fp32",
        f"{case.accumulation_steps} micro-steps": case.accumulation_steps > 1,
        "all synchronised": case.accumulation_sync == "every",
        "checkpointing": case.activation_checkpointing,
        case.optimizer_kernels: case.optimizer_kernels != "auto",
    }
    return ", ".join(word for word, applies in words.items() if applies)


def _percent(share: float) -> str:
    return f"{share:.2%}"
