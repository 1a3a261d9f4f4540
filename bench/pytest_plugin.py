"""The fixture ``bench``, for tests that stand for the speed of somebody's own model.

    def test_ddp_pays(bench):
        bench(vit, strategies=["single", "ddp"], world_sizes=[1, 2]).require_not_slower("ddp")

``pytest --bench-json FILE`` writes what was measured as pytest-benchmark does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bench.api import Comparison

OPTION = "--bench-json"
FOUND = pytest.StashKey[list[tuple[str, "Comparison"]]]()
"""Node id of each test, and what it has measured."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """See pytest."""
    parser.getgroup("bench").addoption(
        OPTION,
        type=Path,
        metavar="FILE",
        help="write what the fixture bench has measured, as pytest-benchmark does",
    )


def pytest_configure(config: pytest.Config) -> None:
    """See pytest."""
    config.stash[FOUND] = []


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """``bench.compare``; its results are shown at the end too, and written for ``--bench-json``."""
    from bench.api import compare  # noqa: PLC0415 - which imports PyTorch, and few tests need

    def measured(make_problem: Callable[..., Any] | str, **told: Any) -> Comparison:
        found = compare(make_problem, **told)
        request.config.stash[FOUND].append((request.node.nodeid, found))
        return found

    return measured


def pytest_sessionfinish(session: pytest.Session) -> None:
    """See pytest."""
    path: Path | None = session.config.getoption(OPTION)
    found = session.config.stash[FOUND]
    if path is not None and found:
        from bench.report.pytest_benchmark import document  # noqa: PLC0415 - as above

        text = json.dumps(document((id_, one.run, one.rows) for id_, one in found), indent=2)
        path.write_text(f"{text}\n", encoding="utf-8")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """See pytest."""
    for id_, one in config.stash[FOUND]:
        terminalreporter.section(f"bench: {id_}")
        terminalreporter.write_line(str(one))
