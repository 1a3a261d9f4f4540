from __future__ import annotations

import io

from bench.run.progress import Lines
from tests.analyze.test_scaling import timing
from tests.fakes import make_case


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_the_budget_is_told_beforehand_and_each_further_round_when_it_comes() -> None:
    stream = io.StringIO()
    progress = Lines(stream)
    progress.started(12, 75, 0)
    progress.started(12, 75, 40)
    progress.widened(1, 1, 4)
    progress.widened(5, 3, 90)
    assert lines(stream) == [
        "12 launches, about 1 min 15 s to go",
        "12 launches, about 1 min 15 s to go, and up to 40 s for wide intervals",
        "1 interval is wider than asked: 1 more launch, about 4 s",
        "5 intervals are wider than asked: 3 more launches, about 1 min 30 s",
    ]


def test_a_second_measurement_is_told_from_the_first() -> None:
    stream = io.StringIO()
    case = make_case(strategy="ddp", world_size=2, twin=True)
    Lines(stream).finished(timing(case, 100), done=1, steps=2, left_s=3)
    (line,) = lines(stream)
    assert " ".join(line.split()) == (
        "[1/2] transformer:tiny ddp, twin x2 timing launch 1: 100 images/s 3 s left"
    )
