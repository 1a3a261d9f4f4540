"""What is said of strategies and workloads that somebody has written, by real processes."""

from __future__ import annotations

import pytest

from bench.contract import check
from bench.contract.check import checked, plan, references_in
from bench.contract.finding import Finding, lines
from bench.contract.launches import Launches
from bench.errors import BenchError
from bench.run.launch import Launcher

HERE = "tests.contract.written"


def look(launcher: Launcher, name: str) -> dict[str, str]:
    """What is wrong with a strategy, by the name of what was looked at."""
    launches = Launches(launcher)
    planned = plan(launcher.machine, "transformer:tiny", f"{HERE}:{name}", 2)
    found = list(launches.looks(name, planned, "strategy"))
    assert {one.name for one in found} >= {"prepare"}
    return {one.name: one.found for one in found if one.status == "bad"}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("SUM", {"gradients": "gradients are the sum over the ranks, and must be their mean"}),
        ("UNCLEARED", {"optimizer_step": "optimizer_step leaves the gradient of tokens.weight"}),
        (
            "ALONE",
            {
                "collectives": "says communicates=True, and its step has no collective",
                "gradients": "each rank keeps the gradient of its own samples",
                "ranks agree": "after one step ranks differ",
            },
        ),
        (
            "EARLY",
            {
                "optimizer": "it was made before the model was wrapped",
                "optimizer_step": "optimizer_step leaves all parameters as they were",
            },
        ),
        ("RAISING", {"prepare": "KeyError: 'no such thing'"}),
    ],
)
def test_a_mistake_of_a_strategy_is_named(
    launcher: Launcher, name: str, wrong: dict[str, str]
) -> None:
    found = look(launcher, name)
    assert found.keys() == wrong.keys(), found
    for what, words in wrong.items():
        assert words in found[what]


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("FORGETFUL", "bad", "tensors are not what was saved"),
        ("BARE", "skipped", "a Bare cannot be saved: give it the methods of"),
    ],
)
def test_a_strategy_that_does_not_go_on_from_a_checkpoint_is_named(
    launcher: Launcher, name: str, status: str, words: str
) -> None:
    planned = plan(launcher.machine, "transformer:tiny", f"{HERE}:{name}", 2)
    found = Launches(launcher).saved(name, planned, "going on from a checkpoint")
    assert found.status == status, str(found)
    assert words in found.found


def test_a_sum_where_a_mean_is_wanted_is_found_in_a_workload(launcher: Launcher) -> None:
    planned = plan(launcher.machine, f"{HERE}:summed", "single", 1)
    found = list(Launches(launcher).looks("summed", planned, "workload"))
    assert {one.name: one.found for one in found if one.status == "bad"}.keys() == {
        "loss is a mean"
    }
    assert len(found) == 10
    (bad,) = (one for one in found if one.status == "bad")
    assert "the loss is a sum over the samples, and must be their mean" in str(bad)


def test_nothing_is_wrong_with_a_good_workload(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "PARTNERS", ())  # proofs have tests of their own
    found = list(checked(f"{HERE}:good", launcher))
    assert len(found) == 10
    assert {one.status for one in found} == {"ok"}, [str(one) for one in found]


def test_all_that_a_file_exports_is_checked() -> None:
    assert references_in("tests/contract/written.py:SUM") == ["tests/contract/written.py:SUM"]
    assert references_in(f"{HERE}")[:2] == [f"{HERE}:MEAN", f"{HERE}:SUM"]
    with pytest.raises(BenchError, match=r"'transformer' is no path/to/file.py:NAME or"):
        references_in("transformer")


def test_findings_are_lines() -> None:
    good = Finding(subject="a.py:a", name="prepare", status="ok")
    bad = Finding(subject="a.py:a", name="gradients", status="bad", found="are the sum")
    assert lines([good, bad], 60) == [
        "a.py:a",
        "  ok       prepare",
        "  bad      gradients",
        "           are the sum",
        "2 checks, 1 bad",
    ]
    assert str(bad) == "a.py:a: gradients: are the sum"
