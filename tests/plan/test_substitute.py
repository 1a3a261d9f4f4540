from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import BenchError, SuiteError
from bench.plan.matrix import expand
from bench.plan.substitute import with_workloads
from bench.plan.suite import load_suite
from bench.plan.units import units_in_words
from tests.fakes import TWO_CORES


def test_a_model_in_a_suites_place_keeps_strategies_and_sizes() -> None:
    suite = load_suite("smoke")
    changed = with_workloads(suite, ["embedding:tiny"], Path())
    assert len(suite.blocks) == 3
    cases = [one.case for one in expand(changed, TWO_CORES)]
    assert {case.workload for case in cases} == {"embedding"}
    assert [(case.strategy, case.world_size) for case in cases] == [
        ("single", 1),
        ("dp", 2),
        ("ddp", 2),
        ("fsdp", 2),
        ("ddp", 2),  # the twin
    ]


def test_its_options_are_those_of_a_suite() -> None:
    texts = ["{transformer: {preset: tiny, layers: [1, 2]}}", "torchvision:squeezenet1_1:tiny"]
    changed = with_workloads(load_suite("smoke"), texts, Path())
    cases = [one.case for one in expand(changed, TWO_CORES, only="strategy == single")]
    assert [case.workload_options.get("layers") for case in cases] == [1, 2, None]
    assert [case.preset for case in cases] == ["tiny"] * 3


def test_mistakes_are_named() -> None:
    with pytest.raises(SuiteError, match="--workload: line 1, column 6: is not valid YAML"):
        with_workloads(load_suite("smoke"), ["{a: b"], Path())
    with pytest.raises(SuiteError, match="must be a name, or one name with its options"):
        with_workloads(load_suite("smoke"), ["{a: {}, b: {}}"], Path())
    # No line of the suite's own has said so.
    with pytest.raises(BenchError, match=r"^--workload: torchvision has no workload 'resnet5'; d"):
        expand(with_workloads(load_suite("smoke"), ["torchvision:resnet5"], Path()), TWO_CORES)
    texts = ["{transformer: {layers: [eight]}}"]
    with pytest.raises(BenchError, match=r"^--workload: transformer\.layers: Expected `int`, got"):
        expand(with_workloads(load_suite("smoke"), texts, Path()), TWO_CORES)


def test_units_are_told_once_for_each_model() -> None:
    planned = expand(load_suite("smoke"), TWO_CORES)
    found = dict(units_in_words(planned))
    assert found["transformer:tiny"].startswith("2 x Block (blocks.0, blocks.1), with ")
    assert found.keys() == {"transformer:tiny", "embedding:tiny"}
