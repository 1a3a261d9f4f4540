from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from bench.api.result import Comparison
from bench.errors import BenchError
from bench.report.index import newest
from bench.report.page import load

RESULTS = Path(__file__).parents[2] / "results"


def quick() -> Path:
    """The published run of that suite."""
    found = newest("quick", RESULTS)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def found() -> Comparison:
    run, records, rows = load(quick())
    own = [row for row in rows if row.case.workload == "resnet152"]
    return Comparison(run=run, records=tuple(records), rows=tuple(own))


def test_the_row_of_a_strategy_is_that_on_the_most_devices(found: Comparison) -> None:
    assert found.row("ddp").case.world_size == 2
    assert found.row("ddp", 1).case.world_size == 1
    with pytest.raises(BenchError, match="there is no row of zero; there are single on 1, "):
        found.row("zero")


def test_what_is_clearly_slower_fails_a_test(found: Comparison) -> None:
    # As the README's table has it: fsdp on 2 devices at half of one device, or less; dp is faster.
    ratio = found.row("fsdp").speedup.ratio
    assert ratio is not None
    words = f"fsdp on 2 is slower than single: {ratio.value:.2f} of its"
    with pytest.raises(AssertionError, match=re.escape(words)):
        found.require_not_slower("fsdp")
    with pytest.raises(AssertionError, match="fsdp on 2 is slower than ddp"):
        found.require_not_slower("fsdp", than="ddp")
    found.require_not_slower("dp")
    found.require_not_slower("ddp")  # noise
    found.require_not_slower("ddp", than="ddp")  # itself
    found.require_not_slower("single")


def test_without_a_figure_there_is_nothing_to_stand_for(found: Comparison) -> None:
    row = msgspec.structs.replace(
        found.row("ddp"), samples_per_s=None, status="failed", reason="it broke"
    )
    broken = Comparison(run=found.run, records=(), rows=(row,))
    with pytest.raises(AssertionError, match="ddp on 2 was not measured: failed: it broke"):
        broken.require_not_slower("ddp")


def test_a_comparison_shows_itself(found: Comparison) -> None:
    text, page = str(found), found._repr_html_()
    assert "resnet152, preset cpu" in text
    assert "<table>" in page
    assert "<sup><a href=" in page
    assert page.count("<tr>") == 1 + len(found.rows)
    assert "6 cases" in repr(found)


def test_names_are_no_markup_in_a_notebook(found: Comparison) -> None:
    row = found.row("single")
    case = msgspec.structs.replace(row.case, label="<b>x", workload="<script>")
    odd = msgspec.structs.replace(row, case=case)
    page = Comparison(run=found.run, records=(), rows=(odd,))._repr_html_()
    assert "<script>" not in page
    assert "<b>x" not in page
