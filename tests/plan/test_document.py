"""What a suite file may not be, however it is written: refused before it takes memory or time."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from bench.errors import BenchError, SuiteError
from bench.plan.document import MAX_BYTES, MAX_DEPTH, MAX_TEXT, MAX_VALUES, read_document
from bench.plan.matrix import MAX_CASES, expand
from bench.plan.suite import load_suite, parse_suite
from tests.fakes import TWO_CORES


def refusal(text: str) -> str:
    with pytest.raises(SuiteError) as caught:
        read_document(text, "my.yaml")
    return str(caught.value)


def laughs(levels: int, kind: str) -> str:
    """Each level names the one below nine times."""
    lines = ["x0: &x0 {a: 1}" if kind == "merge" else "x0: &x0 [1]"]
    for level in range(levels):
        names = ", ".join([f"*x{level}"] * 9)
        inside = f"{{<<: [{names}]}}" if kind == "merge" else f"[{names}]"
        lines.append(f"x{level + 1}: &x{level + 1} {inside}")
    return "\n".join(lines)


@pytest.mark.parametrize("kind", ["list", "merge"])
def test_aliases_that_would_fill_the_memory_are_refused(kind: str) -> None:
    text = laughs(30, kind)
    tracemalloc.start()
    began_s = time.monotonic()
    message = refusal(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"more than {MAX_VALUES:,} values, aliases written out" in message
    assert message.startswith("my.yaml: line ")
    assert peak < 20e6
    assert time.monotonic() - began_s < 5


def test_values_and_depth_are_bounded() -> None:
    assert "more than 100,000 values" in refusal(f"[{'1,' * MAX_VALUES}1]")
    assert read_document("[" * MAX_DEPTH + "]" * MAX_DEPTH, "my.yaml")
    assert f"nested more than {MAX_DEPTH} deep" in refusal("[" * (MAX_DEPTH + 2))
    deep = "a: &a [[[[[[[[[[1]]]]]]]]]]\n" + "".join(
        f"{'bcdef'[n]}: &{'bcdef'[n]} [[[[[[[[[[*{'abcde'[n]}]]]]]]]]]]\n" for n in range(5)
    )
    assert f"nested more than {MAX_DEPTH} deep" in refusal(deep)
    assert "an alias stands inside what it names" in refusal("a: &a [*a]")
    assert "a value of more than 10,000 characters" in refusal(f"a: {'x' * (MAX_TEXT + 1)}")
    assert "more digits than anything needs" in refusal(f"a: 0x{'f' * 5000}")
    assert f"is larger than {MAX_BYTES:,} bytes" in refusal("#" * (MAX_BYTES + 1))


def test_a_file_is_read_no_further_than_it_may_be_large(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.symlink_to("/dev/zero")
    with pytest.raises(SuiteError, match="is larger than 1,000,000 bytes"):
        load_suite(str(path))
    with pytest.raises(BenchError, match="is no name of a file"):
        load_suite("a\0b.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000),
        ("1E3", 1000),
        ("+2e0", 2),
        ("1e-3", 0.001),
        ("1.5e3", 1500.0),
        ("1.e3", 1000.0),
        ("1e3x", "1e3x"),
        ("e3", "e3"),
        ("'1e3'", "1e3"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
    ],
)
def test_numbers_are_read_as_yaml_1_2_does(text: str, value: object) -> None:
    found = read_document(f"a: {text}", "my.yaml")["a"]
    assert found == value
    assert type(found) is type(value)


def test_an_exponent_serves_where_a_number_is_wanted() -> None:
    suite = parse_suite(
        "budget_s: 1e3\n"
        "defaults: {per_device_batch: 1e1, window: {max_s: 1e0, target_interval: 1e-2}}\n"
        "matrix: [{workloads: [transformer:tiny], strategies: [ddp: {bucket_cap_mb: 2.5e1}]}]",
        source="my.yaml",
    )
    (planned,) = expand(suite, TWO_CORES)
    assert suite.budget_s == 1000
    assert planned.case.per_device_batch == 10
    assert planned.case.options["bucket_cap_mb"] == 25.0


def test_what_is_merged_may_be_given_anew_wherever_it_is_named_first() -> None:
    found = read_document("a: {b: {c: &x {<<: {k: 1}, k: 2}}}\nd: {<<: *x}", "my.yaml")
    assert found == {"a": {"b": {"c": {"k": 2}}}, "d": {"k": 2}}
    listed = read_document("a: &a {k: 1, l: 1}\nb: {<<: [{l: 3, m: 3}, *a], m: 4}", "my.yaml")
    assert listed["b"] == {"k": 1, "l": 3, "m": 4}
    assert "only mappings can be merged" in refusal("a: {<<: [1]}")
    assert "the key 'k' appears twice" in refusal("a: {k: 1, k: 1}")
    assert "the key 'k' appears twice" in refusal("a: {k: 1, 'k': 1}")


def test_a_suite_of_too_many_cases_says_how_many_and_what_to_do() -> None:
    seeds = list(range(1000))
    text = (
        "matrix:\n"
        "  - {workloads: [transformer:tiny], strategies: [single]}\n"
        f"  - {{workloads: [transformer:tiny], strategies: [ddp], twins: true, seed: {seeds},"
        f" per_device_batch: {seeds[1:101]}, filter: seed == 1}}\n"
    )
    began_s = time.monotonic()
    with pytest.raises(SuiteError) as caught:
        expand(parse_suite(text, source="my.yaml"), TWO_CORES)
    assert time.monotonic() - began_s < 2
    assert str(caught.value) == (
        "my.yaml: matrix[1]: with this block the suite has 200,001 cases, more than 100,000 "
        "(filters count later): shorten its lists, which multiply, or make several suites"
    )
    assert MAX_CASES == 100_000


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("bucket_cap_mb: 0x8000000000000000", "bucket_cap_mb: a number of more than 64 bits"),
        ("bucket_cap_mb: .nan", "bucket_cap_mb: must be a finite number, not nan"),
        ("bucket_cap_mb: 2001-01-01", "bucket_cap_mb: a date is no option's value"),
        ("bucket_cap_mb: [" + "[" * 21 + "1" + "]" * 22, "is nested more than 20 deep"),
    ],
)
def test_options_that_no_record_could_hold(options: str, expected: str) -> None:
    text = f"matrix: [{{workloads: [transformer:tiny], strategies: [ddp: {{{options}}}]}}]"
    with pytest.raises(SuiteError, match=expected):
        expand(parse_suite(text, source="my.yaml"), TWO_CORES)


def test_a_batch_beyond_all_measure() -> None:
    text = (
        "matrix: [{workloads: [transformer:tiny], strategies: [ddp], world_sizes: [1000000000],"
        " accumulation_steps: 1000000000, per_device_batch: 1000000000}]"
    )
    with pytest.raises(SuiteError, match=r"per_device_batch: .* more than 1,000,000,000,000 in a"):
        expand(parse_suite(text, source="my.yaml"), TWO_CORES)
