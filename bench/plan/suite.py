"""The suite file: YAML in, a ``Suite`` of blocks with typed values out.

Every mistake is a ``SuiteError`` that names the file and the field's path, or the line where the
YAML itself is broken. Plain data only: tags that construct objects are refused by the loader.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import BenchError, SuiteError, did_you_mean
from bench.plan.case import NaturalFloat, PositiveInt
from bench.plan.document import MAX_BYTES, read_document
from bench.plan.ladder import Rung, read_ladder
from bench.plan.reader import SETTINGS, Reader

SHIPPED = resources.files("bench.plan") / "suites"


BLOCK_KEYS = frozenset({"workloads", "strategies", "world_sizes", "filter", "twins", "ladder"})
SUITE_KEYS = frozenset(
    {"name", "description", "defaults", "matrix", "cores_per_device", "budget_s"}
)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block of the matrix: names with their settings, and an axis of values per field."""

    path: str
    """Where the block stands in the file, for messages."""
    workloads: tuple[tuple[str, dict[str, list[Any]]], ...]
    """(reference, axes of its options, ``preset`` among them)."""
    strategies: tuple[tuple[str, dict[str, list[Any]]], ...]
    world_sizes: tuple[int, ...]
    axes: dict[str, list[Any]]
    """Values of every ``Settings`` field that the file names."""
    filter: str | None = None
    twins: bool = False
    """Whether each case is planned a second time, to learn what noise is."""
    ladder: tuple[Rung, ...] = ()
    """What is added to each case, one setting after the other."""


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A suite file, read and checked as far as it can be without knowing the workloads."""

    source: str
    folder: str | None = None
    """Where files that it names are looked for first; None for the current folder."""
    given_in: str | None = None
    """Likewise for workloads that were given in place of the file's."""
    given_by: str | None = None
    """What gave them, for messages."""
    name: str
    description: str = ""
    cores_per_device: int = 1
    budget_s: float = 0.0
    """Seconds for launches beyond the cases' own number, where intervals are wider than asked."""
    blocks: tuple[Block, ...]


def shipped_suites() -> dict[str, str]:
    """Name and text of every suite that comes with the package."""
    return {
        entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8")
        for entry in sorted(SHIPPED.iterdir(), key=lambda entry: entry.name.removesuffix(".yaml"))
        if entry.name.endswith(".yaml")
    }


def load_suite(reference: str) -> Suite:
    """Read a suite by file name, or by the name of a shipped one.

    Raises:
        SuiteError: the file is no valid suite.
        BenchError: there is no such file or suite.
    """
    path = Path(reference)
    shipped = shipped_suites()
    if reference in shipped:
        return parse_suite(shipped[reference], source=f"{reference}.yaml")
    try:
        if path.suffix not in {".yaml", ".yml"} and not path.is_file():
            raise BenchError(f"no suite or file '{reference}'{did_you_mean(reference, shipped)}")
        if path.suffix == ".py":
            raise BenchError(
                f"{reference} is Python, and no suite: name one, and give a workload of your own "
                f"with --workload {reference}"
            )
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)  # no more, whatever it is a link to
        if len(content) > MAX_BYTES:
            raise SuiteError(f"is larger than {MAX_BYTES:,} bytes", source=reference)
        text = content.decode("utf-8")
    except OSError as error:
        raise BenchError(f"{reference}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SuiteError(f"is not UTF-8 text: {error.reason}", source=reference) from error
    except ValueError as error:  # a name with a null character
        raise BenchError(f"{reference}: is no name of a file: {error}") from error
    return parse_suite(text, source=reference, folder=str(path.absolute().parent))


def parse_suite(text: str, *, source: str, folder: str | None = None) -> Suite:
    """Turn a suite's text into a checked value.

    Args:
        text: of the file.
        source: its name, for messages.
        folder: that it lies in, if it is a file.

    Raises:
        SuiteError: names ``source`` and the field's path or line.
    """
    document = read_document(text, source)
    read = Reader(source)
    top = read.mapping(document, "", SUITE_KEYS)
    defaults = read.axes(read.mapping(top.get("defaults", {}), "defaults", SETTINGS), "defaults")
    blocks = read.items(top.get("matrix"), "matrix")
    return Suite(
        source=source,
        folder=folder,
        name=read.name(top.get("name", Path(source).stem)),
        description=read.value(top.get("description", ""), str, "description"),
        cores_per_device=read.value(
            top.get("cores_per_device", 1), PositiveInt, "cores_per_device"
        ),
        budget_s=read.value(top.get("budget_s", 0), NaturalFloat, "budget_s"),
        blocks=tuple(
            _block(read, block, f"matrix[{index}]", defaults) for index, block in enumerate(blocks)
        ),
    )


def _block(read: Reader, value: Any, path: str, defaults: dict[str, list[Any]]) -> Block:
    """One block of the matrix, its settings laid over the defaults."""
    block = read.mapping(value, path, BLOCK_KEYS | SETTINGS.keys())
    own = {name: setting for name, setting in block.items() if name in SETTINGS}
    sizes = block.get("world_sizes", 1)
    sizes = [sizes] if isinstance(sizes, int) else sizes
    filter_ = block.get("filter")
    return Block(
        path=path,
        workloads=read.named(block.get("workloads"), f"{path}.workloads"),
        strategies=read.named(block.get("strategies"), f"{path}.strategies"),
        world_sizes=tuple(
            read.value(size, PositiveInt, f"{path}.world_sizes[{index}]")
            for index, size in enumerate(read.items(sizes, f"{path}.world_sizes"))
        ),
        axes=defaults | read.axes(own, path),
        filter=None if filter_ is None else read.value(filter_, str, f"{path}.filter"),
        twins=read.value(block.get("twins", False), bool, f"{path}.twins"),
        ladder=read_ladder(read, block.get("ladder"), f"{path}.ladder"),
    )
