from __future__ import annotations

import pytest

from bench.errors import BenchError
from bench.predict.memory_obstacle import obstacle
from bench.predict.memory_plan import planned_cases, strategy_entries, suite_of
from tests.fakes import make_case


def test_settings_in_brackets_are_those_of_a_suite() -> None:
    assert strategy_entries("single, ddp(bucket_cap_mb_list=[[1, 25]], static_graph=true)") == [
        "single",
        {"ddp": {"bucket_cap_mb_list": [[1, 25]], "static_graph": True}},
    ]


def test_devices_need_not_be_here() -> None:
    suite = suite_of(
        "transformer(preset=tiny, layers=1)", "ddp, fsdp", [1, 64], device="cuda", optimizer="sgd"
    )
    cases = [one.case for one in planned_cases(suite, "cuda")]
    assert [(case.strategy, case.world_size) for case in cases] == [
        ("ddp", 1),
        ("ddp", 64),
        ("fsdp", 1),
        ("fsdp", 64),
    ]
    assert {case.backend for case in cases} == {"nccl"}
    assert {case.workload_options["layers"] for case in cases} == {1}
    assert {case.optimizer for case in cases} == {"sgd"}
    assert not any(one.skip_reason for one in planned_cases(suite, "cuda"))


@pytest.mark.parametrize(
    ("workload", "strategies", "words"),
    [
        ("transformer:tiny", "dpd", "unknown strategy"),
        ("transformer:tiny", "ddp(", "no name with settings"),
        ("transformer:tiny", "ddp(bucket_cap=1)", "no option 'bucket_cap'"),
        ("transformers:tiny", "ddp", "unknown workload"),
    ],
)
def test_mistakes_are_named(workload: str, strategies: str, words: str) -> None:
    with pytest.raises(BenchError, match=words):
        planned_cases(suite_of(workload, strategies, [1], device="cpu"), "cpu")


def test_what_cannot_be_predicted_has_a_reason() -> None:
    assert obstacle(make_case()) is None
    assert "DeepSpeed" in (obstacle(make_case(strategy="deepspeed")) or "")
    assert "compile" in (obstacle(make_case(compile="default")) or "")
    sparse = make_case(workload="embedding", workload_options={"sparse": True})
    assert "sparse" in (obstacle(sparse) or "")
    assert "one process" in (obstacle(make_case(strategy="dp", world_size=64)) or "")
