"""Measure the peaks that predictions of memory are compared with, predict them, and store both.

``python -m tests.memory_prediction`` takes a quarter of an hour; with the argument ``predict`` it
predicts again what was measured before. Either brings docs/prediction.md up to date. Exit code 1 if
a prediction is further off than promised. Other work on the machine does not disturb it: memory is
counted, not timed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from bench.plan.case import Case
from bench.plan.matrix import expand
from bench.plan.suite import parse_suite
from bench.predict.memory_child import Question, ask
from bench.records.prediction import MemoryScore, ScoredMemory
from bench.report.memory_score import load_score, markdown, misses
from bench.run.launch import Launcher, probe_in_server
from bench.run.outcome import to_record
from bench.run.rounds import process_count
from bench.run.server import start_server, stop_server
from tests.fakes import SHORT, TWO_CORES

ROOT = Path(__file__).parent.parent
STORED = ROOT / "results" / "memory-prediction.json"
DOCUMENT = ROOT / "docs" / "prediction.md"
BEGIN, END = "<!-- memory score: begin -->", "<!-- memory score: end -->"
MODELS = (
    "[transformer:tiny, transformer:cpu, embedding:tiny, embedding:cpu, resnet152:tiny, "
    "resnet152:cpu]"
)
SUITE = f"""
matrix:
  - {{workloads: {MODELS}, strategies: [single], world_sizes: [1], optimizer: [sgd, adamw]}}
  - {{workloads: {MODELS}, strategies: [ddp, fsdp], world_sizes: [2], optimizer: [sgd, adamw]}}
  - workloads: [transformer:cpu, embedding:cpu]
    strategies: [ddp, fsdp]
    world_sizes: [4]
  - workloads: [transformer:cpu, embedding:cpu]
    strategies:
      - ddp: {{gradient_as_bucket_view: true}}
      - ddp: {{static_graph: true}}
      - ddp: {{bucket_cap_mb: 1}}
      - ddp: {{comm_hook: [fp16, bf16]}}
      - ddp: {{local_sgd_period: 2}}
      - fsdp: {{reshard_after_forward: [true, false]}}
      - fsdp: {{wrap: root}}
      - zero
      - dp
    world_sizes: [2]
  - workloads: [transformer:cpu]
    strategies: [{{fsdp: {{shard_size: 2}}}}, {{fsdp: {{reshard_after_forward: 2}}}}, zero]
    world_sizes: [4]
  - workloads: [transformer:cpu]
    strategies: [single, ddp, fsdp, zero]
    world_sizes: [2]
    precision: [bf16-amp, bf16, fp16-amp]
  - workloads: [transformer:cpu]
    strategies: [{{fsdp: {{mixed_precision: bf16, reduce_dtype: fp32}}}}, fsdp1]
    world_sizes: [2]
    precision: bf16-amp
  - workloads: [transformer:cpu, resnet152:tiny]
    strategies: [single, ddp, fsdp]
    world_sizes: [2]
    activation_checkpointing: true
  - workloads: [transformer:cpu]
    strategies: [single, ddp, fsdp, {{ddp: {{gradient_as_bucket_view: true}}}}]
    world_sizes: [2]
    accumulation_steps: 2
    accumulation_sync: [last, every]
  - workloads: [resnet152:tiny]
    strategies: [single, ddp]
    world_sizes: [2]
    optimizer: [sgd, adamw]
    optimizer_kernels: foreach
"""


def cases() -> list[Case]:
    """What is compared; those that cannot run are left out with a word."""
    found = []
    for planned in expand(parse_suite(SUITE, source="memory.yaml"), TWO_CORES):
        if planned.skip_reason is None:
            found.append(planned.case)
        else:
            sys.stderr.write(f"left out: {planned.case.id}: {planned.skip_reason}\n")
    return found


def measured(wanted: Sequence[Case]) -> Iterator[ScoredMemory]:
    """The memory pass of each case; those whose allocations no profile sees are left out."""
    effort = msgspec.structs.replace(SHORT, timeout_s=600)
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder), probe_in_server())
        for case in wanted:
            assignment, outcomes = launcher.launch_case(
                case, effort, "memory", launch=0, processes=process_count(case)
            )
            record = to_record(
                assignment, outcomes, run_id="r", environment="e", units=("sample", 1)
            )
            peaks = [] if record.memory is None else record.memory.peak_allocated_bytes
            known = [peak for peak in peaks if peak is not None]
            if record.memory is None or not known or len(known) < len(peaks):
                sys.stderr.write(f"no figure: {case.id}: {record.status} {record.reason}\n")
                continue
            place = known.index(max(known))
            table = record.memory.by_category or {}
            sys.stderr.write(f"{case.id}: {known}\n")
            yield ScoredMemory(
                case=case,
                measured_bytes=known,
                predicted_bytes=0,
                measured_by_category={name: sizes[place] for name, sizes in table.items()},
            )


def predicted(rows: Sequence[ScoredMemory]) -> Iterator[ScoredMemory]:
    """The same rows with a new prediction each."""
    answers = ask([Question(case=row.case) for row in rows])
    for row, found in zip(rows, answers, strict=True):
        assert found.peak_bytes is not None, f"{row.case.id}: {found.reason}"
        new = msgspec.structs.replace(
            row, predicted_bytes=found.peak_bytes, predicted_by_category=found.by_category
        )
        sys.stderr.write(f"{new.error:+.3%} {new.case.id}\n")
        yield new


def written(document: str, score: MemoryScore) -> str:
    """A document with the score between its marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown(score)}\n\n{END}{after}"


def main(words: Sequence[str]) -> int:
    """See the module."""
    if words == ["predict"]:
        rows = load_score(STORED).rows
    else:
        start_server()
        try:
            rows = list(measured(cases()))
        finally:
            stop_server()
    score = MemoryScore(torch=metadata.version("torch"), rows=list(predicted(rows)))
    STORED.write_bytes(msgspec.json.format(msgspec.json.encode(score)) + b"\n")
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8"), score), encoding="utf-8")
    sys.stdout.write(markdown(score) + "\n")
    return 1 if misses(score.rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
