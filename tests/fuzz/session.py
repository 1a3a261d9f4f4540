"""Many examples, in batches: Hypothesis remembers what it tried within one."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from tests.fuzz.checks import check_folder, check_suite
from tests.fuzz.results import folders
from tests.fuzz.suites import MACHINES, texts

BATCH, SAID_EVERY = 1000, 5000
CHARTS_EVERY, OTHERS_EVERY = 500, 5

Tally = Counter[str]


def try_suites(count: int, seed: int) -> Tally:
    """Plan so many suites; how many ended in what."""
    tally: Tally = Counter()

    def check(example: tuple[str, Any]) -> None:
        tally[check_suite(*example)] += 1

    _try(st.tuples(texts(), st.sampled_from(MACHINES)), check, count, seed)
    return tally


def try_folders(count: int, seed: int, *, charts_every: int = CHARTS_EVERY) -> Tally:
    """Report on so many folders; how many ended in what."""
    tally: Tally = Counter()
    with tempfile.TemporaryDirectory(prefix="bench-fuzz-") as name:
        folder = Path(name)

        def check(example: tuple[bytes, bytes]) -> None:
            run, records = example
            (folder / "run.json").write_bytes(run)
            (folder / "records.jsonl").write_bytes(records)
            charts = tally.total() % charts_every == charts_every - 1
            others = tally.total() % OTHERS_EVERY == 0
            tally[check_folder(folder, charts=charts, others=others)] += 1

        _try(folders(), check, count, seed)
    return tally


def _try(
    strategy: st.SearchStrategy[Any], check: Callable[[Any], None], count: int, seed: int
) -> None:
    for number, start in enumerate(range(0, count, BATCH)):
        settings = hypothesis.settings(
            max_examples=min(BATCH, count - start),
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )

        @hypothesis.seed(seed + number)
        @settings
        @given(strategy)
        def run(example: Any) -> None:
            check(example)

        run()
        tried = min(start + BATCH, count)
        if tried % SAID_EVERY == 0:
            sys.stderr.write(f"{tried:,} of {count:,}\n")
