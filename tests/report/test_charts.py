from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import msgspec
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.analyze.scaling import rows_of
from bench.errors import OutputError
from bench.records.record import Communication, Memory, MemoryTimeline, Phases, Record
from bench.records.store import Store
from bench.report import charts as charts_module
from bench.report.charts import MOST_LANES, MOST_ROWS, MOST_VARIANTS, not_readable, write_charts
from bench.report.drawing import attempt, new_figure
from bench.report.page import write_report
from bench.report.tables import Table, tables_of
from tests.analyze.test_scaling import launches, timing
from tests.fakes import make_case
from tests.report.made_settings import ladder_rows
from tests.report.test_page import make_folder, make_info

PHASES = Phases(data_s=0.001, forward_s=0.1, backward_s=0.2, optimizer_s=0.05)
NO_MEMORY = Memory(
    peak_allocated_bytes=[2**21],
    peak_reserved_bytes=[None],
    peak_driver_bytes=[None],
    peak_process_bytes=[None],
)
PNG = b"\x89PNG"


def test_a_device_without_a_figure_leaves_a_gap_in_its_own_place() -> None:
    held = Memory(
        peak_allocated_bytes=[None, 2**30],
        peak_reserved_bytes=[None] * 2,
        peak_driver_bytes=[None] * 2,
        peak_process_bytes=[None] * 2,
    )
    found = launches(make_case(strategy="ddp", world_size=2), 99, 100, 101, memory=held)
    (axes,) = charts_module._memory(rows_of([], found), "tensor").axes
    (bar,) = axes.patches
    assert bar.get_y() > axes.get_yticks()[0] - 1e-9  # in the lane's lower half
    assert [text.get_text() for text in axes.texts] == ["✕ no figure"]


LONG = ", gradient_as_bucket_view=true"


def table(
    sizes: tuple[int, ...] = (1, 2), ways: int = 3, *, more: str = LONG, **changes: Any
) -> Table:
    records: list[Record] = launches(make_case(strategy="single"), 99, 100, 101)
    for way in range(ways):
        for size in sizes:
            case = make_case(
                strategy="ddp",
                world_size=size,
                options={"bucket_cap_mb": way},
                label=f"ddp(bucket_cap_mb={way}{more})",
            )
            fields = {
                "phases": PHASES,
                "memory": Memory(
                    peak_allocated_bytes=[2**30 * (index + 1) for index in range(size)],
                    peak_reserved_bytes=[None] * size,
                    peak_driver_bytes=[None] * size,
                    peak_process_bytes=[None] * size,
                ),
            } | changes
            records += launches(case, 90.0 * size, 92.0 * size, 95.0 * size, **fields)
    (only,) = tables_of(rows_of([], records))
    return only


def test_each_table_has_its_charts_in_both_formats(tmp_path: Path) -> None:
    ((*charts,),) = write_charts([table()], tmp_path)
    assert [chart.svg.stem.rpartition("-")[2] for chart in charts] == [
        "speedup",
        "efficiency",
        "throughput",
        "memory",
        "step",
        "buckets",
    ]
    for chart in charts:
        assert chart.png.read_bytes().startswith(PNG)
        text = chart.svg.read_text(encoding="utf-8")
        assert "</svg>" in text
        assert chart.title in text  # for those who cannot see it


def test_the_same_rows_give_the_same_charts(tmp_path: Path) -> None:
    first, second = (write_charts([table(ways=1)], tmp_path / name) for name in "ab")
    for one, other in zip(first[0], second[0], strict=True):
        assert one.svg.read_bytes() == other.svg.read_bytes()


@pytest.mark.parametrize("ways", [1, 3])
def test_any_number_of_strategies_fits(tmp_path: Path, ways: int) -> None:
    (charts,) = write_charts([table((1, 2, 4), ways)], tmp_path)
    assert len(charts) == (5 if ways == 1 else 6)  # one cap is no sweep
    assert not any(chart.problem for chart in charts)


def test_a_strategy_has_one_colour_and_its_variants_are_named(tmp_path: Path) -> None:
    (charts,) = write_charts([table((2,), ways=2)], tmp_path)
    (throughput,) = [one for one in charts if one.svg.stem.endswith("-throughput")]
    text = throughput.svg.read_text(encoding="utf-8")
    assert "#0072b2" in text
    assert "x2: 185" in text  # said where one points at a bar: 90, 92 and 95 times 2


def test_what_was_not_measured_is_a_marked_gap(tmp_path: Path) -> None:
    failed = timing(
        make_case(strategy="ddp", world_size=2),
        1.0,
        status="out_of_memory",
        reason="no memory",
        timing=None,
        throughput=None,
        memory=None,
    )
    records = [*launches(make_case(), 99, 100, 101), failed]
    tables = tables_of(rows_of([], records))
    (charts,) = write_charts(tables, tmp_path)
    names = [chart.svg.stem.rpartition("-")[2] for chart in charts]
    assert "speedup" not in names  # a single point is no line
    assert "throughput" in names


def test_charts_that_are_no_longer_drawn_are_removed(tmp_path: Path) -> None:
    (tmp_path / "old-speedup.svg").write_text("<svg/>")
    (tmp_path / "mine.svg").write_text("<svg/>")
    write_charts([table((2,), ways=1)], tmp_path)
    assert not (tmp_path / "old-speedup.svg").exists()
    assert (tmp_path / "mine.svg").exists()


def test_a_place_that_cannot_take_charts_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run")
    (folder / "charts").write_text("no folder")
    with pytest.raises(OutputError, match="charts: cannot be written: File exists"):
        write_report(folder)


def test_more_ways_than_marks_have_lanes_and_no_lines(tmp_path: Path) -> None:
    many = table((1, 2), MOST_VARIANTS)  # and the baseline
    (charts,) = write_charts([many], tmp_path)
    names = [chart.svg.stem.rpartition("-")[2] for chart in charts]
    assert names == ["throughput", "memory", "step", "buckets"]
    assert "14 ways of training" in not_readable(many.rows)


def test_a_table_too_long_to_be_drawn_has_no_charts_but_those_of_settings(tmp_path: Path) -> None:
    rows = table((1, 2), 1).rows * MOST_ROWS
    long = msgspec.structs.replace(table((1, 2), 1), rows=rows)
    assert write_charts([long], tmp_path) == [[]]
    assert "more than one could read" in not_readable(rows)
    assert not_readable(rows[:1] * MOST_LANES) == ""
    assert not_readable(rows[:1] * (MOST_LANES + 1)).startswith("No charts with a bar a row: 53")


def test_one_chart_that_cannot_be_drawn_costs_that_chart_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_font(*_: Any) -> None:
        raise FileNotFoundError("DejaVuSans.ttf")

    monkeypatch.setattr(charts_module, "step_figure", no_font)
    folder = make_folder(tmp_path / "run", phases=PHASES)
    with pytest.warns(UserWarning, match="could not be drawn: FileNotFoundError: DejaVuSans"):
        page = write_report(folder).read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if "could not be drawn" in line]
    assert line.startswith("*What a step is spent on: transformer")
    assert page.count("![") >= 2
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html.count("<svg") == page.count("![")
    assert "could not be drawn: FileNotFoundError: DejaVuSans.ttf" in html


def test_a_broken_backend_costs_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no renderer")

    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.warns(UserWarning, match="no renderer"):
        page = write_report(make_folder(tmp_path / "run")).read_text(encoding="utf-8")
    assert "| strategy " in page
    assert "![" not in page
    assert not [*(tmp_path / "run" / "charts").iterdir()]


def test_the_page_shows_the_charts(tmp_path: Path) -> None:
    page = write_report(make_folder(tmp_path / "run")).read_text(encoding="utf-8")
    for line in page.splitlines():
        if line.startswith("!["):
            assert (tmp_path / "run" / line.rpartition("(")[2].rstrip(")")).is_file()
    assert page.count("![") >= 2


def test_without_matplotlib_the_page_is_written_and_a_note_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = make_folder(tmp_path / "run")
    with pytest.warns(UserWarning, match="matplotlib"):
        page = write_report(folder).read_text(encoding="utf-8")
    assert "| strategy " in page
    assert "![" not in page
    assert "The report has no charts: NoChartsError: matplotlib cannot be imported" in page


@pytest.mark.parametrize("backend", ["TkAgg", "module://matplotlib_inline.backend_inline"])
def test_no_display_and_any_backend_do_not_matter(tmp_path: Path, backend: str) -> None:
    folder = make_folder(tmp_path / "run")
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    done = subprocess.run(
        [sys.executable, "-m", "bench", "report", str(folder)],
        env=environment | {"MPLBACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert any((folder / "charts").glob("*.png"))


def test_a_folder_without_a_figure_has_a_page_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Store(folder) as store:
        store.write_run(make_info())
        store.append(
            timing(
                make_case(), 1.0, status="skipped", reason="no", timing=None, throughput=None,
                memory=None,
            )
        )  # fmt: skip
    assert "skipped: no" in write_report(folder).read_text(encoding="utf-8")


def test_a_long_title_has_as_many_lines_as_it_takes(tmp_path: Path) -> None:
    figure, _ = new_figure(6.0, 3.0)
    chart = attempt(lambda: figure, tmp_path / "one", "Throughput: a workload " + "W" * 90)
    assert chart is not None
    assert chart.problem is None
    (title,) = figure.texts
    renderer = figure.canvas.get_renderer()
    assert title.get_text().count("\n") >= 1
    assert title.get_window_extent(renderer).x1 <= figure.bbox.x1
    assert "\n" not in chart.title


@pytest.mark.filterwarnings("ignore:Glyph .* missing from")
def test_what_no_file_may_hold_is_left_out_of_a_drawing(tmp_path: Path) -> None:
    figure, axes = new_figure(6.0, 3.0)
    axes.set_xlabel("a\x00b \x1b[31mred\ufffe per second")
    chart = attempt(lambda: figure, tmp_path / "one", "Throughput")
    assert chart is not None
    text = chart.svg.read_bytes()
    Xml.fromstring(text)
    assert b"ab red per second" in text


@pytest.mark.parametrize("more", [LONG, "", ", static_graph=true", ", WWWWWW"])
def test_nothing_overlaps_or_is_cut_off_with_twelve_names_and_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """Every text lies within its picture, and the legend below the axes."""
    looked_at: list[str] = []

    def savefig(figure: Any, *_: Any, **__: Any) -> None:
        renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
        legends = [text for legend in figure.legends for text in legend.get_texts()]
        axes = [text for one in figure.axes for text in one.texts]
        for one in figure.axes:  # a tick beyond the axis is not drawn
            low, high = sorted(one.get_ylim())
            ticks = zip(one.get_yticks(), one.get_yticklabels(), strict=False)  # or hidden
            axes += [label for place, label in ticks if low <= place <= high]
            axes += [one.xaxis.label, one.yaxis.label, one._left_title]  # panels' titles stand left
        texts = [*legends, *axes, *figure.texts]
        for text in (one for one in texts if one.get_text()):
            box = text.get_window_extent(renderer)
            sides = box.x0, figure.bbox.x1 - box.x1, box.y0, figure.bbox.y1 - box.y1
            assert min(sides) >= -1, (figure.get_suptitle(), text.get_text(), sides)
            looked_at.append(text.get_text())
        frames = [one.get_tightbbox(renderer) for one in figure.axes if one.axison]
        for one, other in itertools.combinations(frames, 2):
            assert not one.padded(-2).overlaps(other.padded(-2)), figure.get_suptitle()
        for legend, one in itertools.product(figure.legends, figure.axes):
            below = one.get_tightbbox(renderer).y0 if one.axison else one.bbox.y0
            assert legend.get_window_extent(renderer).y1 <= below + 1, figure.get_suptitle()

    monkeypatch.setattr(Figure, "savefig", savefig)
    spent = Communication(busy_s=0.05, exposed_s=0.02, wait_s=0.01, profiled_step_s=0.4)
    shown = table((1, 2), 12, more=more, communication=spent)
    failed = msgspec.structs.replace(
        shown.rows[-1],
        status="out_of_memory",
        samples_per_s=None,
        phases=None,
        peaks={},
        figures=[],
    )
    filled = {"parameters": [2**20], "activations": [2**21]}
    over_time = MemoryTimeline(at_s=[0.0, 0.1], by_category={"activations": [2**21, 2**20]})
    anatomy = msgspec.structs.replace(
        NO_MEMORY, by_category=filled, held_by_category=filled, timeline=over_time
    )
    rows = [msgspec.structs.replace(row, memory=anatomy) for row in shown.rows[:-1]] + [failed]
    (charts,) = write_charts([msgspec.structs.replace(shown, rows=rows)], tmp_path)
    assert not any(chart.problem for chart in charts)
    assert sum("out of memory" in text for text in looked_at) == 4  # bars of four kinds
    assert {"peak", "timeline"} <= {chart.svg.stem.rpartition("-")[2] for chart in charts}
    (ladder,) = tables_of(ladder_rows())
    (charts,) = write_charts([ladder], tmp_path)
    assert charts[-1].svg.stem.endswith("-waterfall")
