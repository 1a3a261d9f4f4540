from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from bench.errors import BenchError
from bench.plan.matrix import expand
from bench.predict.measured import score
from bench.predict.scaling import Wanted
from bench.predict.study import LEAST_LAUNCHES, STUDY, Fixed, read_study
from bench.records.collectives import COLLECTIVES
from bench.records.record import RunInfo
from bench.records.store import RECORDS, RUN, read_records
from bench.report import scrub
from tests import scoreboard_study
from tests.fakes import TWO_CORES
from tests.predict.made import MIB, launches_of, profile
from tests.predict.test_measured import HOSTS, lines, over, rows_of, write
from tests.scoreboard_plan import (
    FIT_ON,
    LINKS,
    RESNET,
    SETTLE_STEPS,
    Part,
    estimate_s,
    full_study,
    in_words,
    is_decided,
    small_study,
    suite_of,
)
from tests.scoreboard_study import chosen, command_of, fix, is_finished, place, publish

PARTS = list(full_study())
CELLS = [
    (part, strategy)
    for part in PARTS
    if part.kind == "cells" and part.link != FIT_ON
    for strategy in part.strategies
]


def test_the_study_is_as_large_as_it_must_be_and_no_longer() -> None:
    ddp = [cell for cell in CELLS if cell[1] != "fsdp"]
    assert len(ddp) >= 40
    assert sum(is_decided(*cell) for cell in ddp) >= 15
    assert len(CELLS) - len(ddp) >= 4
    assert all(part.launches >= LEAST_LAUNCHES for part in PARTS)
    assert all(estimate_s(part) < 15 * 60 for part in PARTS)
    assert sum(map(estimate_s, PARTS)) < 100 * 60
    assert "22 parts, about" in in_words(PARTS)


def test_no_link_that_is_scored_is_fitted_to_and_each_is_measured() -> None:
    assert FIT_ON not in LINKS
    assert {part.link for part, _ in CELLS} == set(LINKS)
    measured = {part.link for part in PARTS if part.kind == "link"}
    assert measured == {*LINKS, FIT_ON}
    models = {part.model.name for part in PARTS if part.link == FIT_ON and part.model is not None}
    assert models == {"transformer", "resnet152"}


def test_each_model_is_profiled_before_amid_and_after_its_cells() -> None:
    kinds = [part.kind for part in PARTS]
    assert kinds[:2] == kinds[-2:] == ["profile", "profile"]
    profiles = [part for part in PARTS if part.kind == "profile"]
    assert len(profiles) == 6
    assert len({place(part, Path("study")) for part in profiles}) == 6


def test_names_of_parts_are_their_own() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    assert chosen(PARTS, ["link-1gbit"])[0].link == "1gbit"
    assert chosen(PARTS, []) == PARTS
    with pytest.raises(BenchError, match="--list names them"):
        chosen(PARTS, ["link-9gbit"])


def test_a_part_is_a_suite_of_its_cells_at_the_profile_s_batch() -> None:
    part = next(one for one in PARTS if one.name == "cells-resnet152-1gbit-caps")
    machine = msgspec.structs.replace(TWO_CORES, hosts=2, emulated=True)
    planned = expand(suite_of(part), machine)
    assert [one.skip_reason for one in planned] == [None] * 5
    caps = [one.case.options["bucket_cap_mb"] for one in planned]
    assert caps == [None, 1, 5, 25, 100]
    for one in planned:
        assert (one.case.nodes, one.case.world_size, one.case.link) == (2, 2, "1gbit")
        assert one.case.per_device_batch == RESNET.per_device_batch
        assert one.effort.launches == 5
        assert one.effort.warmup_steps == SETTLE_STEPS
        assert not one.effort.breakdown
        assert one.effort.window.min_steps == RESNET.steps


def test_commands_go_on_where_a_part_was_stopped(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    profile, link, cells = small_study()
    words = command_of(profile, tmp_path, suite)
    assert "transformer(preset=tiny)" in words
    assert words[-1] == str(tmp_path / "profiles" / "transformer.json")
    assert command_of(link, tmp_path, suite)[3:5] == ["lab", "comm"]
    assert "--resume" not in command_of(cells, tmp_path, suite)
    assert suite.read_text().startswith("{")
    for part in (profile, link, cells):
        assert not is_finished(part, tmp_path)
    write_run(cells, tmp_path, ended_by=None)
    assert not is_finished(cells, tmp_path)
    assert command_of(cells, tmp_path, suite)[-1] == "--resume"
    write_run(cells, tmp_path, ended_by="complete")
    assert is_finished(cells, tmp_path)


def write_run(part: Part, study: Path, *, ended_by: str | None) -> None:
    info = RunInfo(
        run_id="r",
        suite={"name": part.name},
        environment={},
        environment_fingerprint="e",
        seed=0,
        versions={},
        started_at="2026-11-30T00:00:00+00:00",
        ended_by=ended_by,
    )
    folder = place(part, study)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN).write_bytes(msgspec.json.encode(info))


def test_what_is_fitted_to_is_written_before_anything_is_measured(tmp_path: Path) -> None:
    fix(tmp_path)
    path = tmp_path / STUDY
    assert msgspec.json.decode(path.read_bytes(), type=Fixed).fit_on == FIT_ON
    fix(tmp_path)  # the same again
    path.write_bytes(b'{"fit_on": "1gbit"}')
    with pytest.raises(BenchError, match="was begun with another link"):
        fix(tmp_path)


def test_all_parts_are_tried_though_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = itertools.chain([1], itertools.repeat(0))
    tried: list[str] = []

    def measure(part: Part, _: Path) -> int:
        tried.append(part.name)
        return next(codes)

    monkeypatch.setattr(scoreboard_study, "measure", measure)
    assert scoreboard_study.main(["--small", "--folder", str(tmp_path)]) == 1
    assert tried == [part.name for part in small_study()]
    assert f"{tried[0]}: not all of it was measured" in capsys.readouterr().err
    assert scoreboard_study.main(["--small", "--list"]) == 0
    assert "3 parts, about" in capsys.readouterr().out
    assert scoreboard_study.main(["--small", "nothing"]) == 2


def test_what_is_published_is_scored_alike_and_names_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, target = tmp_path / "study", tmp_path / "results" / "study"
    fix(study)
    write(study / "profiles" / "made.json", profile())
    lines(study / "links" / "none" / COLLECTIVES, rows_of(MIB))
    asked = Wanted(strategy="fsdp", places=HOSTS, backend="gloo")
    made = launches_of(profile(), over(MIB), asked, count=5, noise=0.0, seed=0)
    named = [msgspec.structs.replace(one, reason="on walrus-7") for one in made]
    lines(study / "runs" / "cells" / RECORDS, named)
    monkeypatch.setattr(scrub, "this_host", lambda: {"walrus-7"})
    for _ in range(2):  # in the place of what was there
        publish(study, target)
    files = sorted(path.name for path in target.rglob("*") if path.is_file())
    assert files == [f"{COLLECTIVES}.gz", "made.json", f"{RECORDS}.gz", STUDY]
    assert score(read_study(target)) == score(read_study(study))
    assert [one.reason for one in read_records(target / "runs" / "cells")] == ["on host"] * 5
