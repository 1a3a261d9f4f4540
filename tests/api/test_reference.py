from __future__ import annotations

import ast
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.api import compare
from bench.api.notebook import module_text
from bench.api.reference import reference_to
from bench.errors import BenchError
from bench.plan import own

CELLS = """\
import math
import torch
from torch import nn
from torch.nn.functional import mse_loss as loss
WIDTH = 3
KIND = torch.float32
DEVICE = torch.device("cpu")
TABLE = torch.ones(2)

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, dtype=KIND, device=DEVICE)

    def forward(self, inputs):
        return self.linear(inputs) * math.pi

def net(width: int = WIDTH):
    return Net(width), loss, batches

def batches(samples):
    return torch.randn(samples, WIDTH), torch.randn(samples, WIDTH)

def with_table(width: int = WIDTH):
    return TABLE
"""


def module_level() -> None:
    """A function that can be found."""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """What a notebook's kernel has: a main module without a file, and the source of its cells."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    place = "<ipython-input-1>"
    linecache.cache[place] = (len(CELLS), None, CELLS.splitlines(keepends=True), place)
    run: Any = getattr(__import__("builtins"), "exec")  # noqa: B009 - a kernel is what runs text
    run(compile_cells(place), main.__dict__)
    yield lambda name: getattr(main, name)
    del linecache.cache[place]


def compile_cells(place: str) -> Any:
    build: Any = getattr(__import__("builtins"), "compile")  # noqa: B009 - as above
    return build(ast.parse(CELLS), place, "exec")


def test_a_function_of_a_notebook_becomes_a_file_with_all_it_needs(
    notebook: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, folder = reference_to(notebook("net"), tmp_path)
    assert (reference, folder) == ("notebook.py:net", tmp_path)
    monkeypatch.setattr(own, "_codes", {})
    code = own.locate(reference, [folder])
    module = own.load(code)
    model, loss, batches = module.net()
    inputs, targets = batches(5)
    assert loss(model(inputs), targets).ndim == 0
    text = (tmp_path / "notebook.py").read_text()
    assert "from torch.nn.functional import mse_loss as loss" in text
    assert "TABLE" not in text


def test_what_a_notebook_cannot_hand_over_is_named(notebook: Callable[[str], Any]) -> None:
    with pytest.raises(BenchError, match="uses TABLE, a Tensor of this notebook"):
        module_text(notebook("with_table"))


def test_a_function_of_a_file_is_named_by_it(tmp_path: Path) -> None:
    reference, folder = reference_to(module_level, tmp_path)
    assert folder / reference.partition(":")[0] == Path(__file__)
    assert own.load(own.code_of(reference)) is sys.modules[__name__]


def test_what_no_other_process_can_find_is_refused(tmp_path: Path) -> None:
    def local() -> None:
        pass

    with pytest.raises(BenchError, match="is not at the top level of its file"):
        reference_to(local, tmp_path)
    with pytest.raises(BenchError, match="a lambda is not at the top level"):
        reference_to(lambda: None, tmp_path)


def test_a_script_that_is_read_stops_where_it_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_loading", ["script"])
    with pytest.raises(own.ReachedError):
        compare(module_level)


def test_settings_are_checked_as_in_a_suite() -> None:
    with pytest.raises(BenchError, match=r"compare: matrix\[0\]: unknown key 'lanches'"):
        compare("transformer:tiny", lanches=3)
