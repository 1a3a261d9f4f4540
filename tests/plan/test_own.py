from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.plan import own
from bench.plan.case import PlannedCase
from bench.plan.matrix import expand
from bench.plan.registry import find_strategy, find_workload
from bench.plan.sources import source_digest
from bench.plan.suite import load_suite
from bench.run.changes import changes
from tests.fakes import TWO_CORES

NET = """\
from torch import nn
from layers import make

def net(width: int = 2):
    import torch
    return make(width), nn.functional.mse_loss, lambda n: (torch.ones(n, 2), torch.ones(n, 2))
"""
LAYERS = "from torch import nn\n\ndef make(width):\n    return nn.Linear(width, width)\n"
SUITE = "matrix: [{workloads: [net.py], strategies: [single]}]\n"


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, with nothing left behind in this process."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(own, "_codes", {})
    yield
    for name in set(sys.modules) - known:
        if name.startswith("own_") or name in {"layers", "home", "home.net"}:
            del sys.modules[name]


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        suffix = ".yaml" if name == "suite" else ".py"
        (folder / f"{name}{suffix}").write_text(text)
    return folder


def planned(folder: Path) -> PlannedCase:
    (one,) = expand(load_suite(str(folder / "suite.yaml")), TWO_CORES)
    return one


def test_a_file_counts_from_the_suites_folder_and_sees_what_lies_beside_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "far", net=NET, layers=LAYERS, suite=SUITE)
    one = planned(folder)
    assert one.case.workload == "net.py"
    assert one.case.workload_options == {"width": 2}
    code = own.code_of("net.py")
    assert code.root == str(folder.resolve())
    assert one.case.sources == {"net.py": code.digest}
    assert own.codes_of(["net.py", "transformer"]) == {"net.py": code}


def test_a_changed_neighbour_is_another_case(tmp_path: Path) -> None:
    folder = write(tmp_path / "far", net=NET, layers=LAYERS, suite=SUITE)
    before = planned(folder)
    code = own.code_of("net.py")
    own.require_unchanged({"net.py": code})
    (folder / "layers.py").write_text(LAYERS + "# changed\n")
    with pytest.raises(BenchError, match=r"net.py has changed since the run was planned"):
        own.require_unchanged({"net.py": code})
    after = planned(folder)
    assert before.case.id != after.case.id
    assert "sources.net.py" in changes([before], [after])


def test_two_files_of_one_name_are_two_cases(tmp_path: Path) -> None:
    first = planned(write(tmp_path / "one", net=NET, layers=LAYERS, suite=SUITE))
    other = NET.replace("width: int = 2", "width: int = 2, depth: int = 3")
    second = planned(write(tmp_path / "two", net=other, layers=LAYERS, suite=SUITE))
    assert first.case.workload == second.case.workload
    assert first.case.id != second.case.id
    assert second.case.workload_options == {"width": 2, "depth": 3}


def test_shipped_names_have_no_sources(tmp_path: Path) -> None:
    text = "matrix: [{workloads: ['transformer:tiny'], strategies: [single]}]\n"
    assert planned(write(tmp_path, suite=text)).case.sources == {}


def test_a_digest_follows_imports_within_the_folder_alone(tmp_path: Path) -> None:
    write(tmp_path, net="import a.b\nfrom .c import d\nimport json, torch\n", c="import e\n", e="")
    write(tmp_path / "a", b="x = 1\n", __init__="")
    first = source_digest(tmp_path / "net.py", tmp_path)
    assert first == source_digest(tmp_path / "net.py", tmp_path)
    for path in ("a/b.py", "c.py", "e.py"):
        (tmp_path / path).write_text("y = 2\n" if path != "c.py" else "import e\nz = 1\n")
        second = source_digest(tmp_path / "net.py", tmp_path)
        assert second != first, path
        first = second
    (tmp_path / "other.py").write_text("never imported\n")
    assert source_digest(tmp_path / "net.py", tmp_path) == first


def test_a_file_in_a_package_is_imported_as_its_module(tmp_path: Path) -> None:
    write(tmp_path / "home", __init__="", layers=LAYERS, net=NET.replace("layers", ".layers"))
    assert find_workload("home/net.py:net").name == "home/net.py:net"
    assert own.code_of("home/net.py:net").module == "home.net"
    assert find_workload("home.net:net").presets.keys() == {"default"}


def test_a_script_is_read_up_to_where_it_compares(tmp_path: Path) -> None:
    text = "import bench\n\n" + NET + "\nbench.compare(net)\nraise RuntimeError('beyond')\n"
    write(tmp_path, script=text, layers=LAYERS)
    assert find_workload("script.py:net").options.__struct_fields__ == ("width",)
    assert not own.is_loading()


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("", "no.py", "workload 'no.py' cannot be found: there is no file no.py in "),
        ("def f(:\n", "net.py", "cannot be imported: net.py, line 1: SyntaxError: invalid syntax"),
        ("x = 1\ny = x / 0\n", "net.py", "net.py, line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "net.py", "net.py, line 1: SystemExit: 3"),
        ("x = 1\n", "net.py:x", "workload 'net.py:x' is int, not a Workload; a function may be"),
        ("x = 1\n", "net.py", "found: net.py has no function that returns (model, loss, batches)"),
        (
            "from torch import nn\nclass Net(nn.Module): pass\n",
            "net.py",
            "found: Net is a model alone: net.py has no function that returns (model, loss, bat",
        ),
        (
            "def f(): pass\ndef g(): pass\n",
            "net.py",
            "several that it may be: f, g; name one, as n",
        ),
        ("def f(): pass\n", "net.py:g", "net.py has no 'g'. Known: f"),
        ("def f(x): pass\n", "net.py", "is no workload: TypeError: the argument x of f has no def"),
        ("from torch.nn import Linear\n", "net.py:Linear", "is a model, not a Workload"),
        ("def f(): pass\n", "net", "unknown workload 'net'"),
    ],
)
def test_mistakes_name_file_and_line(
    tmp_path: Path, text: str, reference: str, expected: str
) -> None:
    write(tmp_path, net=text)
    with pytest.raises(BenchError) as caught:
        find_workload(reference)
    assert expected in str(caught.value)


def test_a_mistake_while_building_names_its_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        net="import torch\n\ndef net():\n    return torch.ones(1).nothing\n",
        suite=SUITE,
    )
    with pytest.raises(BenchError) as caught:
        planned(tmp_path)
    assert "the facts of net.py fail: net.py, line 4: AttributeError:" in str(caught.value)


def test_a_strategy_is_found_by_the_name_that_it_exports(tmp_path: Path) -> None:
    text = (
        "import dataclasses\nfrom bench.strategies import ddp\n"
        "(plain,) = ddp.STRATEGIES\n"
        "def make(name):\n    return dataclasses.replace(plain, name=name)\n"
        "STRATEGIES = (make('one'), make('two'))\n"
    )
    write(tmp_path, ways=text, net="STRATEGIES = ()\nx = 1\n")
    assert find_strategy("ways.py:two").name == "two"
    assert find_strategy("ways.py:plain").name == "ddp"
    for reference, expected in {
        "ways.py": "has several that it may be: one, two",
        "ways.py:make": "is function, not a Strategy",
        "net.py:x": "is int, not a Strategy",
        "net.py": "net.py has no Strategy; it may end with STRATEGIES",
    }.items():
        with pytest.raises(BenchError, match=expected):
            find_strategy(reference)


def test_a_file_that_a_module_of_the_same_name_hides_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "json", __init__="", mine="x = 1\n")
    with pytest.raises(BenchError, match="cannot be imported: another json comes before"):
        find_workload("json/mine.py:x")


@pytest.mark.parametrize(
    ("reference", "is_own"),
    [
        ("vit.py", True),
        ("../a b/vit.py:VIT", True),
        ("my.models:VIT", True),
        ("my.models", True),
        ("vit", False),
        ("..rel:X", False),
        ("transformer", False),
        ("vit.py:a:b", False),
        ("vit.yaml", True),  # a module, as far as can be told
    ],
)
def test_references_to_ones_own(reference: str, is_own: bool) -> None:
    assert own.is_own(reference) is is_own
