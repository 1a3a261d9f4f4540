from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import BenchError, SuiteError
from bench.plan.suite import load_suite, parse_suite, shipped_suites

BLOCK = "matrix: [{workloads: [transformer:tiny], strategies: [single]}]\n"


def failing(text: str) -> str:
    with pytest.raises(SuiteError) as caught:
        parse_suite(text, source="my.yaml")
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_block_lies_over_the_defaults() -> None:
    suite = parse_suite(
        "defaults: {launches: 5, precision: bf16-amp}\n"
        "matrix:\n"
        "  - {workloads: [transformer], strategies: [single], launches: 7}\n"
        "  - {workloads: [transformer], strategies: [single]}\n",
        source="my.yaml",
    )
    first, second = suite.blocks
    assert first.axes == {"launches": [7], "precision": ["bf16-amp"]}
    assert second.axes == {"launches": [5], "precision": ["bf16-amp"]}
    assert suite.name == "my"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("defualts: {}\n" + BLOCK, "my.yaml: unknown key 'defualts'; did you mean 'defaults'?"),
        (
            "defaults: {lanches: 2}\n" + BLOCK,
            "my.yaml: defaults: unknown key 'lanches'; did you mean 'launches'?",
        ),
        ("defaults: {launches: 0}\n" + BLOCK, "my.yaml: defaults.launches: Expected `int` >= 1"),
        ("defaults: {launches: two}\n" + BLOCK, "my.yaml: defaults.launches: Expected `int`"),
        (
            "defaults: {precision: [fp32, fp23]}\n" + BLOCK,
            "my.yaml: defaults.precision[1]: invalid value 'fp23'; did you mean 'fp32'?",
        ),
        (
            "defaults: {window: {max: 3}}\n" + BLOCK,
            "my.yaml: defaults.window: unknown key 'max'; did you mean 'max_s'?",
        ),
        (
            "defaults: {limits: {warmup_s: 3}}\n" + BLOCK,
            "my.yaml: defaults.limits: unknown key 'warmup_s'; did you mean 'warm_up_s'?",
        ),
        (
            "defaults: {limits: {window_factor: 0.5}}\n" + BLOCK,
            "my.yaml: defaults.limits.window_factor: Expected `float` >= 1.0",
        ),
        (
            "defaults: {window: {max_s: -3}}\n" + BLOCK,
            "my.yaml: defaults.window.max_s: Expected `float` > 0.0",
        ),
        (
            "defaults: {device: gpu}\n" + BLOCK,
            "my.yaml: defaults.device: invalid value 'gpu'; did you mean",
        ),
        (
            "defaults: {backend: ncll}\n" + BLOCK,
            "my.yaml: defaults.backend: invalid value 'ncll'; did you mean 'nccl'?",
        ),
        ("name: x\n", "my.yaml: matrix: is missing"),
        ("matrix: []\n", "my.yaml: matrix: is empty: there is nothing to run"),
        ("", "my.yaml: is empty"),
        ("just text\n", "my.yaml: must be a mapping"),
        (
            "matrix: [{workloads: [], strategies: [ddp]}]",
            "my.yaml: matrix[0].workloads: is empty: there is nothing to run",
        ),
        (
            "matrix: [{workloads: [a], strategies: [ddp], world_sizes: [1, 0]}]",
            "my.yaml: matrix[0].world_sizes[1]: Expected `int` >= 1",
        ),
        (
            "matrix: [{workloads: [a], strategies: [ddp], per_device_batch: -4}]",
            "my.yaml: matrix[0].per_device_batch: Expected `int` >= 1",
        ),
        (
            "matrix: [{workloads: [a], strategies: [{ddp: {}, fsdp: {}}]}]",
            "my.yaml: matrix[0].strategies[0]: must be a name, or one name with its options",
        ),
        ("matrix: [\n  {a: b\n", "my.yaml: line 3, column 1: is not valid YAML"),
        ("a: 1\na: 2\n", "my.yaml: line 2, column 1: is not valid YAML: the key 'a' appears twice"),
        (
            "name: !!python/object/apply:os.system ['true']\n" + BLOCK,
            "my.yaml: line 1, column 7: is not valid YAML: could not determine a constructor",
        ),
        ("name: 3\n" + BLOCK, "my.yaml: name: Expected `str`"),
        (f"name: {'x' * 300}\n" + BLOCK, "my.yaml: name: must be 1 to 80 printable characters"),
        ('name: "a\\e[31m"\n' + BLOCK, "my.yaml: name: must be 1 to 80 printable characters"),
        ('name: "\\ud800"\n' + BLOCK, "my.yaml: line 1, column 7: half a character"),
        (
            "name: !!bool abc\n" + BLOCK,
            "my.yaml: line 1, column 7: is not valid YAML: this is no bool ('abc')",
        ),
        ("defaults: {timeout_s: .inf}\n" + BLOCK, "my.yaml: defaults.timeout_s: Expected"),
        ("defaults: {window: {max_s: .nan}}\n" + BLOCK, "my.yaml: defaults.window.max_s: Expected"),
        (f"defaults: {{launches: {2**64}}}\n" + BLOCK, "my.yaml: defaults.launches: "),
        (f"defaults: {{seed: {10**30}}}\n" + BLOCK, "my.yaml: defaults.seed: "),
        ("budget_s: -1\n" + BLOCK, "my.yaml: budget_s: Expected `float` >= 0"),
        ("budget_s: .inf\n" + BLOCK, "my.yaml: budget_s: Expected `float` <= "),
        (BLOCK.replace("}]\n", ", twins: 2}]\n"), "my.yaml: matrix[0].twins: Expected `bool`"),
        ("defaults: {launch_interval: 0}\n" + BLOCK, "my.yaml: defaults.launch_interval: "),
        ("defaults: {max_launches: 0}\n" + BLOCK, "my.yaml: defaults.max_launches: "),
        ("? [a]\n: 1\n", "my.yaml: line 1, column 3: is not valid YAML: a key must be plain text"),
        ("- a\n", "my.yaml: must be a mapping of names to values, not a list"),
        ("\x00", "my.yaml: is not valid YAML"),
        ("[" * 5000, "my.yaml: line 1, column 42: nested more than 40 deep"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_field(text: str, expected: str) -> None:
    assert failing(text).startswith(expected)


def test_a_yaml_tag_constructs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "made"
    failing(f"name: !!python/object/apply:os.mkdir ['{target}']\n" + BLOCK)
    assert not target.exists()


def test_every_shipped_suite_is_valid() -> None:
    assert {"smoke", "quick"} <= shipped_suites().keys()
    for name in shipped_suites():
        suite = load_suite(name)
        assert suite.name == name
        assert suite.description


def test_an_unknown_suite_names_the_nearest() -> None:
    with pytest.raises(BenchError, match="no suite or file 'quik'; did you mean 'quick'"):
        load_suite("quik")


def test_a_file_of_python_is_taken_for_a_workload(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("MODEL = 1\n")
    with pytest.raises(BenchError, match=r"mine.py is Python, and no suite: .* --workload .*mine"):
        load_suite(str(file))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot be read: No such file"):
        load_suite(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(SuiteError, match="is not UTF-8 text"):
        load_suite(str(tmp_path / "latin.yaml"))
