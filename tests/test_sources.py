"""Nothing that is read becomes code: no pickle, no eval, no shell, no YAML that constructs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bench.plan.document import SuiteLoader

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    [ROOT / "noxfile.py"]
    + [path for name in ("bench", "workloads", "tests") for path in (ROOT / name).rglob("*.py")]
)
PICKLING = {"cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
CODE = {"compile", "eval", "exec", "execfile"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
STARTERS = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}
LOADER = "SuiteLoader"
"""The one loader of YAML that is named: the safe one within limits."""


def faults(source: str) -> Iterator[str]:
    """What a file does that it must not, with its line."""
    for node in ast.walk(ast.parse(source)):
        for fault in _faults_of(node):
            yield f"line {getattr(node, 'lineno', '?')}: {fault}"


def _faults_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            found = {alias.name.partition(".")[0] for alias in names} & PICKLING
            yield from (f"imports {name}" for name in found)
        case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in PICKLING:
            yield f"imports {module}"
        case ast.ImportFrom(module="torch" | "yaml" | "subprocess" | "os", names=names):
            bare = {"load", "load_all", "system", "popen", "run", "Popen"}
            yield from (f"imports a bare {one.name}" for one in names if one.name in bare)
        case ast.Call():
            yield from _faults_of_call(node)


def _faults_of_call(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    words = {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}
    if name in CODE:
        yield name
    if name in SHELLS or words.get("shell", "False") != "False":
        yield f"{name} with a shell"
    if name in STARTERS and (
        not call.args or isinstance(call.args[0], ast.Constant | ast.JoinedStr)
    ):
        yield f"{name} without a list"
    if name == "torch.load" and words.get("weights_only") != "True":
        yield "torch.load without weights_only"
    if name.endswith(".load") and words.get("allow_pickle", "False") != "False":
        yield f"{name} with pickles"
    if name in {"yaml.load", "yaml.load_all"} and words.get("Loader") != LOADER:
        yield f"{name} with another loader"
    if name.startswith("yaml.") and name.rpartition(".")[2].startswith(("unsafe", "full")):
        yield name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_is_read_becomes_code(path: Path) -> None:
    assert list(faults(path.read_text(encoding="utf-8"))) == []


def test_the_loader_of_suites_is_a_safe_one() -> None:
    assert issubclass(SuiteLoader, yaml.SafeLoader)
    unsafe = [tag for tag in SuiteLoader.yaml_constructors if tag and "python" in tag]
    assert unsafe == []
    assert None in SuiteLoader.yaml_constructors  # what refuses every tag it does not know
    assert not SuiteLoader.yaml_multi_constructors


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "from torch import load",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "import yaml\nyaml.unsafe_load(text)",
        "eval(text)",
        "exec(text)",
        "import os\nos.system('ls')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.run(f'ls {name}')",
        "import numpy\nnumpy.load(path, allow_pickle=True)",
    ],
)
def test_the_walk_sees_what_it_looks_for(source: str) -> None:
    assert len(list(faults(source))) >= 1
