"""Predicted rows on disk: a file of their own, in the shape of all rows, each flagged."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.errors import OutputError
from bench.predict.scaling import Prediction
from bench.predict.sweep import Question, as_predicted
from bench.records.profile import Profile
from bench.records.record import RunInfo
from bench.records.scaling import PREDICTED, PREDICTIONS, Predicted, as_record
from bench.records.store import Store, write_atomically


def write_rows(
    rows: Sequence[Predicted], folder: Path, question: Question, *, version: str
) -> None:
    """Write rows and what they rest on.

    Args:
        rows: of one question.
        folder: new, or without predictions.
        question: what was asked.
        version: of this package.

    Raises:
        OutputError: the folder cannot be written, or holds predictions already.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    info = RunInfo(
        run_id=uuid.uuid4().hex[:12],
        suite={
            "name": PREDICTED,
            "description": "Predicted; nothing was measured.",
            "basis": question.basis,
            "planned": [],
        },
        environment={PREDICTED: True, "network": question.network.name},
        environment_fingerprint=PREDICTED,
        seed=0,
        versions={"bench": version},
        started_at=now,
        ended_at=now,
        ended_by="complete",
    )
    with Store(folder, name=PREDICTIONS) as store:
        store.write_run(info)
        for row in rows:
            store.append(
                as_record(
                    row,
                    run_id=info.run_id,
                    environment=PREDICTED,
                    unit=question.profile.unit,
                    units=question.profile.units_per_sample,
                )
            )


def write_beside(folder: Path, found: Sequence[tuple[Prediction, Profile]]) -> None:
    """Put predictions of a run's own cases beside its records, in the place of older ones.

    Raises:
        OutputError: the folder cannot be written.
    """
    lines = [
        msgspec.json.encode(
            as_record(
                as_predicted(one, None),
                run_id=PREDICTED,
                environment=PREDICTED,
                unit=profile.unit,
                units=profile.units_per_sample,
            )
        )
        for one, profile in found
    ]
    try:
        write_atomically(folder / PREDICTIONS, b"".join(line + b"\n" for line in lines))
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from error
