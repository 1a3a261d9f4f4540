"""Predictions in a process of their own: questions in, answers out, a line of JSON each.

The group that carries nothing, and what stands in for parts of torch, are state of a process. The
parent imports neither.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import TextIO

import msgspec

from bench.errors import BenchError, in_words
from bench.plan.case import Case
from bench.records.prediction import PredictedBatch, PredictedMemory

LEAST_WITH_BATCH_NORM = 2


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the memory of a case is, and with a limit, how many samples would fit."""

    case: Case
    limit_bytes: int | None = None
    """That the peak may have in the search for a batch; None for no search."""


def ask(questions: Sequence[Question]) -> Iterator[PredictedMemory]:
    """Answers in the order of the questions, each as soon as it is there.

    Raises:
        BenchError: the child ended before it had answered all of them.
    """
    command = [sys.executable, "-m", "bench.predict.memory_child"]
    with (
        tempfile.TemporaryFile("w+") as asked,
        tempfile.TemporaryFile("w+") as said,
    ):
        asked.write("".join(f"{msgspec.json.encode(one).decode()}\n" for one in questions))
        asked.seek(0)
        with subprocess.Popen(  # noqa: S603 - ourselves
            command, stdin=asked, stdout=subprocess.PIPE, stderr=said, text=True
        ) as child:
            assert child.stdout is not None, "it is a pipe"
            answered = 0
            for line in child.stdout:
                yield msgspec.json.decode(line, type=PredictedMemory)
                answered += 1
        if answered < len(questions):
            said.seek(0)
            lines = said.read().strip().splitlines() or ["no output"]
            raise BenchError(f"the process that predicts has ended early: {lines[-1]}")


def answer(question: Question) -> PredictedMemory:
    """One prediction, and the search for a batch; in this process.

    A case that cannot be run on tensors without data is answered in words.
    """
    from bench.predict.memory_step import predict  # noqa: PLC0415 - in the child only

    case = question.case
    try:
        found = predict(case)
        fullest = found.peak.index(max(found.peak))
        batch = None if question.limit_bytes is None else _search(case, question.limit_bytes)
    except Exception as error:  # noqa: BLE001 - an operator may read data, whoever wrote it
        return PredictedMemory(
            case=case, reason=f"does not run on tensors without data: {in_words(error)}"
        )
    return PredictedMemory(
        case=case,
        peak_bytes=found.peak[fullest],
        by_category=found.by_category[fullest],
        max_batch=batch,
    )


def _search(case: Case, limit_bytes: int) -> PredictedBatch | None:
    from bench.plan.registry import find_workload  # noqa: PLC0415 - in the child only
    from bench.predict.memory_batch import largest_batch  # noqa: PLC0415
    from bench.predict.memory_step import predict  # noqa: PLC0415

    if case.scaling == "strong":
        return None

    def peak_of(batch: int) -> int:
        total = batch * case.world_size * case.accumulation_steps
        return max(
            predict(msgspec.structs.replace(case, per_device_batch=batch, global_batch=total)).peak
        )

    workload = find_workload(case.workload)
    facts = workload.facts(msgspec.convert(case.workload_options, workload.options))
    least = LEAST_WITH_BATCH_NORM if facts.has_batch_norm else 1
    return largest_batch(peak_of, limit_bytes=limit_bytes, start=case.per_device_batch, least=least)


def main(questions: TextIO, answers: TextIO) -> None:
    """Answer until there are no more questions."""
    warnings.simplefilter("ignore")  # torch's, of what no user of ours has asked for
    for line in questions:
        found = answer(msgspec.json.decode(line, type=Question))
        answers.write(msgspec.json.encode(found).decode() + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
