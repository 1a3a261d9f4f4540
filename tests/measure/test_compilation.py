from __future__ import annotations

from dataclasses import dataclass

import pytest

from bench.measure.compilation import (
    REASON_CHARACTERS,
    REASONS,
    CompileWatch,
    most_frequent,
    short_reason,
)
from bench.measure.compiler import Compiler, cannot_compile, try_compiler
from tests.fakes import FakeTime

BREAK = """Attempted to call function marked as skipped
  Explanation: Dynamo developers have intentionally marked that the function cannot be traced.
  Hint: Avoid calling it.

  Developer debug context: module: torch
"""


@dataclass
class Arguments:
    """What torch calls back with."""

    compile_id: str
    callback_trigger: str = "CallbackTrigger.DYNAMO"


def watch_on(time: FakeTime, monkeypatch: pytest.MonkeyPatch) -> CompileWatch:
    monkeypatch.setattr(CompileWatch, "_register", lambda _: None)
    monkeypatch.setattr("torch._dynamo.utils.counters", {"stats": {"unique_graphs": 3}})
    return CompileWatch(time)


def compile_once(watch: CompileWatch, time: FakeTime, seconds: float, arguments: object) -> None:
    watch._begin(arguments)
    time.sleep(seconds)
    watch._end(arguments)


def test_compiling_is_counted_and_timed_before_the_window_and_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = FakeTime()
    watch = watch_on(time, monkeypatch)
    compile_once(watch, time, 2.0, Arguments("0/0"))
    compile_once(watch, time, 0.5, Arguments("0/0", "CallbackTrigger.LAZY_BACKWARD"))
    compile_once(watch, time, 1.0, Arguments("0/1"))
    compile_once(watch, time, 0.25, Arguments("0/1", "CallbackTrigger.LAZY_BACKWARD"))
    time.sleep(100.0)
    before = watch.read()
    assert (before.compile_s, before.recompiles, before.in_window) == (3.75, 1, 0)
    watch.begin_window()
    compile_once(watch, time, 7.0, Arguments("0/2"))
    after = watch.read()
    assert (after.compile_s, after.recompiles, after.in_window) == (3.75, 1, 1)
    assert after.graphs == 3
    assert (after.parts, after.breaks, after.reasons) == (0, 0, {})  # groups that torch has not


def test_what_torch_does_not_name_is_no_recompilation(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_on(FakeTime(), monkeypatch)
    watch._begin()  # as versions do that call back with nothing
    watch._end()
    assert (watch.count, watch.recompiles) == (1, 0)


def test_reasons_are_short_and_few() -> None:
    assert short_reason(BREAK) == "Attempted to call function marked as skipped"
    assert short_reason("call\n\x1b[31mred") == "call red"
    assert len(short_reason("x" * 10_000)) == REASON_CHARACTERS
    many = {f"reason {number}": number for number in range(1, 20)}
    assert list(most_frequent([many, {"reason 1": 100}])) == [
        "reason 1",
        "reason 19",
        "reason 18",
        "reason 17",
        "reason 16",
    ]
    assert len(most_frequent([many])) == REASONS


def test_a_compiler_that_compiles_nothing_is_known_beforehand() -> None:
    found = cannot_compile(try_compiler({"CXX": "/bin/false"}), None)
    assert found == {
        "cpu": "torch.compile has no C++ compiler here (CXX=/bin/false fails on an empty program:"
        " exit code 1, and no program); name another in CXX"
    }
    assert cannot_compile(Compiler(command="/usr/bin/g++"), None) == {}
    headers = cannot_compile(Compiler(command="/usr/bin/g++", has_python_headers=False), None)
    assert "python3-dev" in headers["cpu"]


def test_accelerators_need_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Compiler(command="/usr/bin/g++")
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    assert list(cannot_compile(good, "cuda")) == ["cuda"]
    assert cannot_compile(good, "mps") == {}  # whose kernels are not written in it
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    assert cannot_compile(good, "cuda") == {}
