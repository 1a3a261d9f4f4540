"""Another model in a suite's place: its strategies, sizes and settings stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.plan.case import Effort
from bench.plan.document import read_document
from bench.plan.reader import Reader
from bench.plan.suite import Block, Suite

OPTION = "--workload"
EFFORT = frozenset(Effort.__struct_fields__)


def with_effort(suite: Suite, **asked: Any) -> Suite:
    """The same suite with other fields of ``Effort`` for all of its cases.

    Args:
        suite: whose blocks may set them too.
        asked: value by name of the field.
    """
    own = {name: [value] for name, value in asked.items()}
    assert EFFORT.issuperset(own), "these are fields of an effort"
    blocks = [msgspec.structs.replace(one, axes=one.axes | own) for one in suite.blocks]
    return msgspec.structs.replace(suite, blocks=tuple(blocks))


def with_workloads(suite: Suite, texts: Sequence[str], folder: Path) -> Suite:
    """The same suite of other workloads.

    What is spent on a case is the first block's for all, since blocks that differ in nothing but
    their workloads come to the same cases.

    Args:
        suite: whose workloads are replaced.
        texts: each a name or reference as a suite has it, or a mapping of one to its options.
        folder: where files are looked for.

    Raises:
        SuiteError: a text cannot be read.
    """
    read = Reader(OPTION)
    given = read.named([read_document(text, OPTION) for text in texts], "workloads")
    effort = {name: axis for name, axis in suite.blocks[0].axes.items() if name in EFFORT}
    blocks: list[Block] = []
    for block in suite.blocks:
        own = {name: axis for name, axis in block.axes.items() if name not in EFFORT}
        changed = msgspec.structs.replace(block, workloads=given, axes=own | effort)
        seen = (msgspec.structs.replace(one, path=block.path) for one in blocks)
        if changed not in seen:
            blocks.append(changed)
    return msgspec.structs.replace(
        suite, blocks=tuple(blocks), given_in=str(folder.absolute()), given_by=OPTION
    )
