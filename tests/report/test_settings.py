from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib.figure
import msgspec
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bench.analyze.rows import Row, Setting
from bench.analyze.scaling import rows_of
from bench.records.record import CollectiveCost, Communication, Parity
from bench.records.store import RUN, Store, read_run
from bench.report import cells
from bench.report.changes import MOST_ROWS
from bench.report.charts import write_charts
from bench.report.page import markdown, plain, write_report
from bench.report.settings import SettingsTable, setting_words
from bench.report.tables import tables_of
from tests.analyze.test_scaling import COMPILED, timing
from tests.report.made_settings import (
    LADDER,
    LADDER_RATES,
    PLAIN_DDP,
    SETTINGS,
    SINGLE,
    ladder_rows,
    measured,
    settings_rows,
    variant,
)
from tests.report.test_page import make_info

PNG = b"\x89PNG"


def only_table(rows: list[Row], *, compact: bool = False) -> SettingsTable:
    (table,) = tables_of(rows, compact=compact)
    (settings,) = table.settings
    return settings


def cells_of(table: SettingsTable, heading: str) -> list[str]:
    (column,) = [one for one in table.columns if one.heading == heading]
    return [column.cell(row) for row in table.rows]


def headings(table: SettingsTable) -> list[str]:
    return [column.heading for column in table.columns]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting(name="precision", value="bf16-amp"), "bf16-amp"),
        (Setting(name="compile", value="default"), "compile default"),
        (Setting(name="accumulation_steps", value=4), "accumulation_steps 4"),
        (Setting(name="activation_checkpointing", value=True), "activation_checkpointing"),
        (Setting(name="env", value={"A": "1", "B": "x"}), "A=1, B=x"),
        (Setting(name="env", value={}), "no env"),
        (Setting(name="bucket_cap_mb", value=25.0, is_option=True), "bucket_cap_mb 25"),
        (Setting(name="bucket_cap_mb", value=None, is_option=True), "bucket_cap_mb null"),
        (Setting(name="broadcast_buffers", value=False, is_option=True), "no broadcast_buffers"),
        (Setting(name="precision", value="low", is_option=True), "precision low"),
        (Setting(name="env", value=3), "3"),
    ],
)
def test_a_setting_in_words(setting: Setting, words: str) -> None:
    assert setting_words([setting]) == words
    assert setting_words([setting, setting]) == f"{words}, {words}"


def test_each_setting_is_a_row_with_what_it_changes() -> None:
    table = only_table(settings_rows())
    assert table.title == "Settings of ddp and fsdp"
    assert cells_of(table, "setting") == [
        "ddp: plain",
        "ddp: bucket_cap_mb 1",
        "ddp: bucket_cap_mb 100",
        "ddp: static_graph",
        "ddp: no broadcast_buffers",
        "ddp: comm_hook bf16",
        "ddp: bucket_cap_mb 25.5, static_graph, comm_hook powersgd",
        "ddp: bf16-amp",
        "ddp: accumulation_steps 4",
        "ddp: GLOO_SOCKET_IFNAME=lo",
        "fsdp: plain",
        "fsdp: no reshard_after_forward",
    ]
    changes = cells_of(table, "against plain")
    assert changes[0] == changes[10] == "the reference"
    assert re.fullmatch(r"-5\.\d% \(-\d\.\d% to -\d\.\d%\)", changes[1])
    assert re.fullmatch(r"no clear difference, [+-]\d.* \(-\d.*% to \+\d.*%\)", changes[2])
    assert changes[8].startswith("+43.")


def test_other_strategies_stand_against_ddp_too_and_ddp_not_against_itself() -> None:
    against = cells_of(only_table(settings_rows()), "against ddp")
    assert against[:10] == [cells.DASH] * 10
    assert against[10].startswith("-66.")
    records = [one for case, rate in SETTINGS[:4] for one in measured(case, rate)]
    assert "against ddp" not in headings(only_table(rows_of([], records)))


def test_plain_ddp_stands_beside_another_strategys_settings() -> None:
    records = [one for case, rate in (SETTINGS[0], *SETTINGS[-2:]) for one in measured(case, rate)]
    table = only_table(rows_of([], records))
    assert cells_of(table, "setting") == [
        "ddp: plain",
        "fsdp: plain",
        "fsdp: no reshard_after_forward",
    ]


def test_figures_of_one_strategy_need_no_name_and_the_plain_row_is_first() -> None:
    records = [one for case, rate in (*SETTINGS[1:3], SETTINGS[0]) for one in measured(case, rate)]
    table = only_table(rows_of([], [*records, *measured(SINGLE, 100.0)]))
    assert table.title == "Settings of ddp"
    assert cells_of(table, "setting") == ["plain", "bucket_cap_mb 1", "bucket_cap_mb 100"]


def test_rows_that_differ_in_no_setting_have_no_such_table() -> None:
    cases = [SINGLE, PLAIN_DDP, variant("fsdp"), variant(world_size=4)]
    records = [one for case in cases for one in measured(case, 100.0)]
    (table,) = tables_of(rows_of([], records))
    assert table.settings == []
    page = markdown(make_info(), [], [table])
    assert "Settings" not in page
    assert "Where time and memory go:\n" in page


def test_memory_and_communication_stand_beside_the_change() -> None:
    table = only_table(settings_rows())
    assert cells_of(table, "tensor memory, GiB/device")[:4] == [
        "0.250",
        "0.250 (the same)",
        "0.250 (the same)",
        "0.225 (-10%)",
    ]
    assert set(cells_of(table, "collectives of a step")) == {"3 x all_reduce"}
    assert set(cells_of(table, "payload, MB")) == {"12.0"}
    assert set(cells_of(table, "least on the wire, MB")) == {"12.0"}
    assert set(cells_of(table, "buckets, MB")) == {"3 x 4.00"}
    assert set(cells_of(table, "exposed, ms")) == {"4.00"}
    assert cells_of(table, "sync cost, ms")[0] == "13.5 (10.0 to 17.0)"
    deviation = "off by: gradient 0.17%, losses 0.0041%, parameters 25% of their way"
    assert cells_of(table, "parity")[4:6] == ["exact", f"lossy by design, {deviation}"]
    page = markdown(make_info(), [], tables_of(settings_rows()))
    assert f"lossy by design, {deviation}" in page.split("### Settings")[0]


def test_a_deviation_that_is_not_known_is_not_said() -> None:
    lossy = Parity(verdict="lossy_by_design", parameter_deviation=0.0)
    row = Row(case=PLAIN_DDP, status="ok", parity=lossy)
    assert cells.proof(row) == "lossy by design, off by: parameters 0% of their way"
    row = Row(case=PLAIN_DDP, status="ok", parity=Parity(verdict="lossy_by_design"))
    assert cells.proof(row) == "lossy by design"
    tiny = Parity(verdict="lossy_by_design", gradient_deviation=1e-300)
    row = Row(case=PLAIN_DDP, status="ok", parity=tiny)
    assert cells.proof(row) == "lossy by design, off by: gradient 0.0000000%"
    huge = Parity(verdict="lossy_by_design", gradient_deviation=1e308)
    row = Row(case=PLAIN_DDP, status="ok", parity=huge)
    assert cells.proof(row) == "lossy by design, off by: gradient 1e+308 times its size"


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([], cells.DASH),
        ([3_000_000], "1 x 3.00"),
        ([1_050_000, 26_200_000, 12_600_000], "3: 1.05, 26.2, 12.6"),
        ([1_000_000, *[2_000_000] * 9], "10: 1.00 to 2.00"),
    ],
)
def test_buckets_are_counted_and_sized(sizes: list[int], text: str) -> None:
    row = Row(case=PLAIN_DDP, status="ok", communication=Communication(bucket_bytes=sizes))
    assert cells.buckets(row) == text


def test_bytes_of_all_operations_add_up_and_an_unknown_one_leaves_none() -> None:
    def cost(op: str, payload: int | None, wire: int | None) -> CollectiveCost:
        return CollectiveCost(
            op=op, calls=2, payload_bytes=payload, wire_bytes_minimum=wire, busy_s=0.1
        )

    two = [cost("all_gather", 2_000_000, 1_000_000), cost("reduce_scatter", 1_000_000, 500_000)]
    row = Row(case=PLAIN_DDP, status="ok", communication=Communication(collectives=two))
    assert cells.calls(row) == "2 x all_gather; 2 x reduce_scatter"
    assert (cells.payload(row), cells.on_the_wire(row)) == ("3.00", "1.50")
    unknown = Communication(collectives=[*two, cost("send", 5, None)])
    row = msgspec.structs.replace(row, communication=unknown)
    assert (cells.payload(row), cells.on_the_wire(row)) == ("3.00", cells.DASH)


def test_notes_say_what_a_change_does_not() -> None:
    compiled = variant(compile="default")
    other = variant(bucket_cap_mb=7, seed=1)
    records = [one for case, rate in SETTINGS for one in measured(case, rate)]
    records += [*measured(compiled, 200.0), *measured(other, 170.0)]
    records += measured(variant(bucket_cap_mb=8, seed=1), 170.0)
    page = markdown(make_info(), [], tables_of(rows_of([], records)))
    section = page.split("### Settings")[1].split("### Where")[0]
    assert "another precision: does not train bit for bit the same" in section
    assert "compiled: may sum in another order" in section
    assert "the same layout of buckets as ddp: what differs is noise" in section
    assert "no change given: ddp with plain settings was not measured" in section
    assert "superlinear" not in section
    assert "*Settings* stand against" in page


def test_what_was_not_compiled_is_no_compiled_row() -> None:
    case = variant(compile="default", compile_scope="blocks")
    empty = msgspec.structs.replace(COMPILED, graphs=0)
    records = [
        msgspec.structs.replace(one, flags=["not_compiled"], compilation=empty)
        if one.pass_ == "timing"
        else one
        for one in measured(case, 240.0)
    ]
    rows = rows_of([], [*measured(PLAIN_DDP, 180.0), *records])
    table = only_table(rows)
    assert cells_of(table, "setting")[1] == "compile default asked for and not done, scope blocks"
    assert cells_of(table, "against plain")[1] == cells.DASH
    section = markdown(make_info(), [], tables_of(rows)).split("### Settings")[1]
    assert "compiled: may sum in another order" not in section
    assert "no change given: nothing was compiled" in section


def test_a_compiled_row_says_what_it_took() -> None:
    case = variant(compile="default")
    records = [
        msgspec.structs.replace(one, compilation=COMPILED) if one.pass_ == "timing" else one
        for one in measured(case, 240.0)
    ]
    rows = rows_of([], [*measured(PLAIN_DDP, 180.0), *records])
    section = markdown(make_info(), [], tables_of(rows)).split("### Settings")[1]
    assert "compiled: may sum in another order" in section.split("### Where")[0]
    assert "not part of the figure: 1 graph of 50 calls" in section.split("### Where")[0]


def test_failures_are_rows_of_it() -> None:
    failed = timing(
        variant(static_graph=True), 1.0, status="out_of_memory", reason="no room", timing=None,
        throughput=None, memory=None,
    )  # fmt: skip
    rows = rows_of([], [*measured(PLAIN_DDP, 180.0), failed])
    table = only_table(rows)
    assert cells_of(table, "images/s")[1] == "out of memory"
    assert cells_of(table, "against plain")[1] == cells.DASH
    section = markdown(make_info(), [], tables_of(rows)).split("### Settings")[1]
    assert "out\\_of\\_memory: no room" in section


def sweep(*layouts: tuple[float | None, list[int]]) -> list[Row]:
    records = []
    for cap, sizes in layouts:
        case = PLAIN_DDP if cap is None else variant(bucket_cap_mb=cap)
        records += measured(case, 180.0, buckets=sizes)
    return rows_of([], records)


def test_a_sweep_that_cannot_show_an_effect_warns_with_the_remedy() -> None:
    one_bucket = sweep((None, [3_145_728]), (25, [3_145_728]), (100, [3_145_728]))
    warning = (
        "The sweep of bucket sizes on 2 devices cannot show an effect: 3 rows have all gradients "
        "in one bucket of 3.15 MB; take a larger model, or caps below 3.00 MiB."
    )
    assert only_table(one_bucket).warnings == [warning]
    assert warning in markdown(make_info(), [], tables_of(one_bucket))
    assert f"warning: {warning}" in " ".join(plain(one_bucket).split())
    same = only_table(sweep((1, [4_000_000] * 3), (4, [4_000_000] * 3))).warnings
    assert same == [
        "The sweep of bucket sizes on 2 devices cannot show an effect: 2 rows have the same 3 "
        "buckets of 4.00 MB; take caps that lie further apart, or a larger model."
    ]
    assert only_table(sweep((None, [1, 2]), (25, [3]))).warnings == []


def test_a_ladder_shows_the_change_from_plain_and_from_the_rung_below() -> None:
    (table,) = tables_of(ladder_rows())
    (ladder,) = table.settings
    assert ladder.is_ladder
    assert ladder.title == "Ladder of ddp on 2 devices"
    assert cells_of(ladder, "setting") == [
        "plain",
        "+ bf16-amp",
        "+ compile default",
        "+ accumulation_steps 4",
        "+ bucket_cap_mb 100",
    ]
    below = cells_of(ladder, "against the rung below")
    assert below[0] == cells.DASH
    assert below[1].startswith("-49.")
    assert below[2].startswith("+4")
    assert below[4].startswith("no clear difference, ")
    assert cells_of(ladder, "against plain")[4].startswith("+17.")


def test_settings_beside_a_ladder_are_in_a_table_of_their_own() -> None:
    records = [
        one for case, rate in zip(LADDER, LADDER_RATES, strict=True) for one in measured(case, rate)
    ]
    records += measured(variant(static_graph=True), 181.0)
    below = {LADDER[1].id: LADDER[0].id}
    (table,) = tables_of(rows_of([], records, rungs=below))
    settings, ladder = table.settings
    assert [row.case.id for row in ladder.rows] == [LADDER[0].id, LADDER[1].id]
    assert cells_of(settings, "setting")[0] == "plain"
    assert "static_graph" in cells_of(settings, "setting")
    assert LADDER[1].id not in {row.case.id for row in settings.rows}
    assert {settings.stem, ladder.stem} == {
        "transformer-tiny-weak-settings",
        "transformer-tiny-weak-ladder",
    }


def test_a_report_learns_of_rungs_from_the_plan(tmp_path: Path) -> None:
    with Store(tmp_path / "run") as store:
        info = make_info()
        info.suite["planned"] = [
            {"case": msgspec.to_builtins(case)} | ({"rung_below": lower.id} if lower else {})
            for lower, case in zip((None, *LADDER), LADDER, strict=False)
        ]
        store.write_run(info)
        for case, rate in zip(LADDER, LADDER_RATES, strict=True):
            for record in measured(case, rate):
                store.append(record)
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "### Ladder of ddp on 2 devices" in page
    assert "](charts/transformer-tiny-weak-ladder-waterfall.svg)" in page.split("### Where")[0]
    info = read_run(tmp_path / "run")
    info.suite["planned"][1]["rung_below"] = "gone"
    (tmp_path / "run" / RUN).write_bytes(msgspec.json.encode(info))
    assert "Ladder" in write_report(tmp_path / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("rows", [settings_rows(), ladder_rows()])
def test_a_terminal_has_80_columns_for_settings_too(rows: list[Row]) -> None:
    lines = plain(rows).splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("---")]
    table = [line for n in starts for line in lines[n - 1 : lines.index("", n)]]
    assert len(table) > 10
    assert max(map(len, lines)) <= 80


def test_names_of_the_scaling_table_say_nothing_of_what_is_plain() -> None:
    (table,) = tables_of(settings_rows())
    names = [table.columns[1].cell(row) for row in table.rows]
    assert names[1] == "ddp, fp32"
    assert "ddp, fp32, accumulation_steps 4" in names
    assert "ddp, fp32, GLOO_SOCKET_IFNAME=lo" in names


@pytest.mark.parametrize(
    ("rows", "kind"), [(settings_rows(), "change"), (ladder_rows(), "waterfall")]
)
def test_the_change_is_drawn_for_every_row(rows: list[Row], kind: str, tmp_path: Path) -> None:
    tables = tables_of(rows)
    (settings,) = tables[0].settings
    (charts,) = write_charts(tables, tmp_path)
    (chart,) = [one for one in charts if one.svg.stem == f"{settings.stem}-{kind}"]
    assert chart.png.read_bytes().startswith(PNG)
    text = chart.svg.read_text(encoding="utf-8")
    assert chart.title.startswith(settings.title)
    for name in settings.names.values():  # text is drawn as shapes, with a comment beside it
        assert all(part in text for part in name.removeprefix("ddp: ").removeprefix("fsdp: ")
                   .replace(",", "").split())  # fmt: skip
    assert "no clear difference" in text


def many(count: int, name: str, **changes: Any) -> list[Row]:
    records = measured(PLAIN_DDP, 180.0)
    for number in range(count):
        case = variant(comm_hook=f"{name}{number}", **changes)
        records += measured(case, 100.0 + 20 * number)
    return rows_of([], records)


def with_interval(row: Row, low: float, high: float) -> Row:
    assert row.setting.ratio is not None
    ratio = msgspec.structs.replace(row.setting.ratio, low=low, high=high)
    setting = msgspec.structs.replace(row.setting, ratio=ratio, verdict="no clear difference")
    return msgspec.structs.replace(row, setting=setting)


@pytest.mark.parametrize("is_wide", [False, True])
def test_nothing_is_cut_off_with_twelve_rows_and_long_names(tmp_path: Path, is_wide: bool) -> None:
    boxes: list[Any] = []
    original = matplotlib.figure.Figure.savefig

    def savefig(figure: Any, *arguments: Any, **words: Any) -> None:
        (axes,) = figure.axes
        if "plain settings" in axes.get_xlabel():
            renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
            for texts, frame in (
                ([*axes.get_yticklabels(), *figure.texts], figure.bbox),
                (axes.texts, axes.bbox),  # nor do they run into the names
            ):
                for text in texts:
                    box = text.get_window_extent(renderer)
                    sides = box.x0 - frame.x0, frame.x1 - box.x1, box.y0 - frame.y0
                    boxes.append((text.get_text(), *sides, frame.y1 - box.y1))
        original(figure, *arguments, **words)

    rows = many(12, "a_hook_with_quite_a_long_name_and_a_number_", static_graph=True)
    if is_wide:
        rows = [*rows[:-1], with_interval(rows[-1], 0.001, 50.0)]
        rows = [*rows[:1], with_interval(rows[1], 0.0, 2.0), *rows[2:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.figure.Figure, "savefig", savefig)
        write_charts(tables_of(rows), tmp_path)
    assert any("a_hook" in text for text, *_ in boxes)
    for text, *sides in boxes:
        assert min(sides) >= 0, text


def test_more_settings_than_one_could_read_are_not_drawn(tmp_path: Path) -> None:
    tables = tables_of(many(MOST_ROWS, "hook"))
    (charts,) = write_charts(tables, tmp_path)
    assert not [chart for chart in charts if chart.svg.stem.endswith("-change")]
