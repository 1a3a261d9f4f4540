"""A small part of ``nox -s fuzz``, the same each time; and that its guard and checks do see."""

from __future__ import annotations

import copy
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import BenchError
from tests.fuzz.checks import check_suite, kind_of
from tests.fuzz.guard import BreachError, guarded
from tests.fuzz.odd import mutated
from tests.fuzz.session import try_folders, try_suites
from tests.fuzz.suites import ANCHORED, BOMBS, LADDERS, MACHINES


def test_suites_end_in_a_plan_or_in_one_line() -> None:
    tally = try_suites(150, seed=1)
    assert tally["planned"] >= 0.3 * tally.total()
    assert len(tally) > 4


def test_folders_end_in_a_report_or_in_one_line() -> None:
    tally = try_folders(100, seed=1, charts_every=50)
    assert tally["reported"] > 10
    assert tally["reported, lines left out"] > 10
    assert len(tally) > 2


def test_what_is_changed_is_a_copy_so_that_a_seed_tries_the_same() -> None:
    document = {"matrix": [{"ladder": LADDERS[1], "sizes": [1, 2]}]}
    before = copy.deepcopy(document)

    @settings(max_examples=30, derandomize=True, database=None)
    @given(st.composite(mutated)(document))
    def change(changed: Any) -> None:
        assert changed is not document
        assert document == before

    change()


@pytest.mark.parametrize("text", ANCHORED)
def test_anchors_and_merges_are_allowed(text: str) -> None:
    assert check_suite(text, MACHINES[0]) == "planned"


@pytest.mark.parametrize("text", BOMBS)
def test_what_would_grow_is_refused(text: str) -> None:
    assert check_suite(text, MACHINES[0]) != "planned"


def test_the_guard_sees_what_must_not_be_done(tmp_path: Path) -> None:
    sys.modules.pop("this_is_not_there", None)
    deeds: list[Callable[[], object]] = [
        lambda: importlib.import_module("this_is_not_there"),
        lambda: subprocess.run(["true"], check=True),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: (tmp_path / "file").write_text("x"),
        lambda: os.mkdir(tmp_path / "folder"),  # noqa: PTH102 - another way
    ]
    for deed in deeds:
        with pytest.raises(BreachError), guarded():
            deed()
    with pytest.raises(ModuleNotFoundError), guarded(frozenset({"this_is_not_there"})):
        importlib.import_module("this_is_not_there")
    assert list(tmp_path.iterdir()) == []


def test_the_guard_sees_what_is_hidden_by_a_broad_handler(tmp_path: Path) -> None:
    def hidden() -> None:
        try:
            (tmp_path / "file").write_text("x")
        except BaseException:  # noqa: BLE001 - what is tested
            return

    with pytest.raises(BreachError, match="for writing"), guarded():
        hidden()


def test_an_error_is_one_harmless_line() -> None:
    assert kind_of(BenchError("a\nb\x1b[31m\u202ec must be d")) == "wrong type or range"
