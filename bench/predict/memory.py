"""Memory of devices that are not here: what cases need there, whether they fit, how large a batch.

The steps run on tensors without data, through torch's own tracker; docs/prediction.md says what
that sees, and what it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

from bench.plan.case import PlannedCase
from bench.predict.memory_child import Question, ask
from bench.predict.memory_obstacle import obstacle
from bench.records.prediction import MemoryForecast, PredictedMemory

GIB = 2**30
ALLOWANCE_BYTES: Mapping[str, int] = {"cpu": 0}
"""For what no tensor shows, unless a user says otherwise: none where tensors are all there is."""
ON_ACCELERATORS_BYTES = 3 * GIB // 2
"""The driver's context 0.3 to 0.6 GB, NCCL's buffers 0.2 to 1.5 GB, workspaces of cuBLAS and cuDNN,
fragments. A guess, from such reports; no measurement of ours."""


def allowance_for(device: str) -> int:
    """Bytes that are set aside on a device of a type, where nothing else is asked for."""
    return ALLOWANCE_BYTES.get(device, ON_ACCELERATORS_BYTES)


def predict_memory(
    planned: Sequence[PlannedCase], *, device_memory_bytes: int | None, allowance_bytes: int
) -> Iterator[PredictedMemory]:
    """A row for each case, in their order, as they come.

    Args:
        planned: see ``bench.predict.memory_plan``.
        device_memory_bytes: of each device; then the largest batch is searched, too.
        allowance_bytes: of that, set aside.

    Raises:
        BenchError: the process that predicts has ended early.
    """
    limit = None if device_memory_bytes is None else device_memory_bytes - allowance_bytes
    reasons = [obstacle(one.case) or one.skip_reason for one in planned]
    answers = ask(
        [
            Question(case=one.case, limit_bytes=limit)
            for one, reason in zip(planned, reasons, strict=True)
            if reason is None
        ]
    )
    for one, reason in zip(planned, reasons, strict=True):
        yield next(answers) if reason is None else PredictedMemory(case=one.case, reason=reason)


def forecast_of(
    rows: Sequence[PredictedMemory], *, device_memory_bytes: int | None, allowance_bytes: int
) -> MemoryForecast:
    """Rows, with what they stand on."""
    return MemoryForecast(
        torch=metadata.version("torch"),
        device_memory_bytes=device_memory_bytes,
        allowance_bytes=allowance_bytes,
        rows=list(rows),
    )
