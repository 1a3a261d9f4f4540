from __future__ import annotations

from pathlib import Path

import pytest

from bench.plan.case import Effort, Limits
from bench.run.phases import (
    LEAVE_S,
    Note,
    Notebook,
    launch_limit_s,
    limit_s,
    note_file,
    read_note,
)
from tests.fakes import make_case

LIMITS = Limits(
    start_s=1.0,
    set_up_s=2.0,
    compile_s=100.0,
    warm_up_s=3.0,
    window_factor=4.0,
    window_s=5.0,
    pass_s=6.0,
)


@pytest.mark.parametrize(
    ("phase", "expected_s", "limit"),
    [
        ("start", None, 1.0),
        ("set-up", None, 2.0),
        ("warm-up", None, 3.0),
        ("window", 10.0, 45.0),
        ("communication", 10.0, 45.0),
        ("window", None, 6.0),  # without warm-up nobody knows
        ("parity in fp64", None, 6.0),
        ("compile", None, 100.0),
        ("another", None, 6.0),  # one that is not known here yet
        ("done", None, LEAVE_S),
    ],
)
def test_each_phase_has_its_limit(phase: str, expected_s: float | None, limit: float) -> None:
    assert limit_s(LIMITS, Note(phase=phase, since_s=0.0, expected_s=expected_s)) == limit


def test_what_may_compile_may_take_longer() -> None:
    for phase, expected_s, limit in [("parity in fp64", None, 106.0), ("communication", 10, 145.0)]:
        note = Note(phase=phase, since_s=0.0, expected_s=expected_s, compiles=True)
        assert limit_s(LIMITS, note) == limit
    effort = Effort(timeout_s=7.0, limits=LIMITS)
    assert launch_limit_s(make_case(), effort) == 7.0
    assert launch_limit_s(make_case(compile="default"), effort) == 107.0


def test_the_last_note_is_read_whole(tmp_path: Path) -> None:
    assert read_note(tmp_path, 1) is None
    notebook = Notebook(tmp_path, 1)
    assert read_note(tmp_path, 1) is None
    for phase in ("a phase with a long name", "short"):
        note = Note(phase=phase, since_s=1.5, expected_s=2.5, step=7)
        notebook.write(note)
        assert read_note(tmp_path, 1) == note
    note_file(tmp_path, 1).write_bytes(b'{"phase": "wind')
    assert read_note(tmp_path, 1) is None
