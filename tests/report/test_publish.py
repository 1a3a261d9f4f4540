from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from bench.errors import BenchError, OutputError
from bench.records.collectives import (
    COLLECTIVES,
    Collective,
    holds_collectives,
    iterate_collectives,
)
from bench.records.store import RECORDS, RUN, Store, read_records, read_run
from bench.report import collectives, publish
from bench.report.document import Document
from bench.report.index import (
    BEGIN,
    END,
    README,
    RESULTS,
    SHOWN,
    excerpt,
    folders,
    index,
    insert,
    newest,
    where,
)
from bench.report.markdown import markdown_of
from bench.report.page import CHARTS, document, load
from bench.report.tables import tables_of
from tests.report.test_page import make_folder, make_info
from tests.test_architecture import ROOT

NAME = "a-cpu-2-cores-2026-01-01-made"


def test_a_complete_run_is_copied_compressed_and_listed(tmp_path: Path) -> None:
    results, folder = tmp_path / "results", make_folder(tmp_path / "run")
    target = publish.publish(folder, results)
    assert target == results / NAME
    assert {path.name for path in target.iterdir()} == {"run.json", "records.jsonl.gz"}
    assert read_records(target) == read_records(folder)
    text = index(results)
    assert f"[made]({NAME}/report.md)" in text
    assert "| 2 cores of a CPU, torch 2.9 " in text
    assert "On 2 devices only ddp could be ranked: 180 ± 3" in text


def test_emulated_hosts_are_named_after_their_machine() -> None:
    info = make_info()
    assert publish.name_of(info) == NAME
    info.environment["cores"] = [1]  # of the first of them
    info.environment["network"] = {"kind": "emulated"}  # of a run before the machine's were told
    assert publish.name_of(info) == NAME.replace("2-cores", "1-cores")
    assert where(info).startswith("1 core of a CPU")
    info.environment["network"]["cores"] = 2
    assert publish.name_of(info) == NAME
    assert where(info).startswith("2 cores of a CPU")


def test_a_run_takes_the_place_of_itself_and_of_no_other(tmp_path: Path) -> None:
    results, folder = tmp_path / "results", make_folder(tmp_path / "run")
    target = publish.publish(folder, results)
    (target / "stale.md").write_text("old")
    assert publish.publish(folder, results) == target
    assert not (target / "stale.md").exists()
    info = read_run(folder)
    info.run_id = "another"
    (folder / RUN).write_bytes(msgspec.json.encode(info))
    assert publish.publish(folder, results) == results / f"{NAME}-2"
    assert folders(results) == [target, results / f"{NAME}-2"]
    assert newest("made", results) == results / f"{NAME}-2"


def test_publishing_what_is_published_changes_nothing(tmp_path: Path) -> None:
    results = tmp_path / "results"
    target = publish.publish(make_folder(tmp_path / "run"), results)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    assert publish.publish(target, results) == target
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert [path.name for path in results.iterdir()] == [NAME]


def test_a_published_run_under_an_older_name_takes_its_new_one(tmp_path: Path) -> None:
    results = tmp_path / "results"
    publish.publish(make_folder(results / "made"), results)
    assert [path.name for path in results.iterdir()] == [NAME]
    publish.publish(make_folder(results / NAME / "inner"), results)  # nothing of it is there
    assert (results / NAME / "records.jsonl.gz").is_file()


def test_a_run_that_was_interrupted_is_not_published(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run")
    info = read_run(folder)
    info.ended_by = "SIGINT"
    (folder / RUN).write_bytes(msgspec.json.encode(info))
    with pytest.raises(BenchError, match="no complete run: SIGINT"):
        publish.publish(folder, tmp_path / "results")


def test_a_published_folder_takes_no_further_run(tmp_path: Path) -> None:
    target = publish.publish(make_folder(tmp_path / "run"), tmp_path / "results")
    with pytest.raises(OutputError, match="holds results already, compressed ones"):
        Store(target, resume=True)


def test_records_that_are_cut_short_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    target = publish.publish(make_folder(tmp_path / "run"), tmp_path / "results")
    path = target / "records.jsonl.gz"
    whole = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(whole[:-20]))
    with pytest.warns(UserWarning, match=r"records\.jsonl\.gz:\d+: left out, cut short"):
        assert len(read_records(target)) == whole.count(b"\n") - 1
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match=r"records\.jsonl\.gz: cut short or damaged"):
        assert len(read_records(target)) < whole.count(b"\n")


def test_names_and_paths_are_taken_out_unless_they_are_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.report.scrub.this_user", lambda: {"jane"})
    monkeypatch.setattr("bench.report.scrub.this_host", lambda: {"node17"})
    folder = make_folder(tmp_path / "run")
    info = read_run(folder)
    info.environment["source"] = "/home/jane/bench on node17.example.org"
    (folder / RUN).write_bytes(msgspec.json.encode(info))
    results = tmp_path / "results"
    kept = publish.publish(folder, results, keep_names=True)
    assert read_run(kept).environment["source"] == info.environment["source"]
    found = read_run(publish.publish(folder, results)).environment["source"]
    assert found == ".../bench on host"


def collectives_folder(folder: Path) -> Path:
    row = Collective(
        run_id="c",
        op="all_reduce",
        backend="gloo",
        device="cpu",
        dtype="fp32",
        world_size=2,
        bytes=2**20,
        status="ok",
        median_s=0.001,
        low_s=0.0009,
        high_s=0.0011,
        back_to_back_s=0.001,
        algbw_bytes_per_s=1e9,
        busbw_bytes_per_s=1e9,
        back_to_back_busbw_bytes_per_s=1e9,
    )
    with Store(folder, name=COLLECTIVES) as store:
        info = make_info()
        info.suite["name"] = info.run_id = "comm"
        store.write_run(info)
        store.append(row)
    return folder


def test_a_run_of_collectives_alone_is_published_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = collectives_folder(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    readme = f"{BEGIN}\nold\n{END}\n"
    README.write_text(readme)
    assert publish.main([str(folder)]) == 0
    target = RESULTS / NAME.replace("made", "comm")
    assert [*iterate_collectives(target)] == [*iterate_collectives(folder)]
    assert (target / "report.html").read_text().count("<svg") == 1
    text = (RESULTS / "README.md").read_text()
    assert "all\\_reduce of fp32 over gloo on 2 ranks: up to 1 GB/s on the bus back to back" in text
    assert README.read_text() == readme  # of another suite than the one it shows


def test_nothing_is_written_where_there_is_no_place_for_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert publish.main([str(folder)]) == 2
    assert "README.md" in capsys.readouterr().err
    assert not list((tmp_path / "elsewhere").iterdir())
    assert publish.main(["--help"]) == 2
    assert "results/NAME" in capsys.readouterr().err


def test_text_goes_between_the_comments_only() -> None:
    readme = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    new = insert(readme, "new")
    assert new == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert insert(new, "new") == new
    with pytest.raises(BenchError, match="no place"):
        insert("nothing", "new")


AGAIN = "nox -s publish makes it again"


def test_what_is_made_from_the_published_results_is_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    readme = README.read_text(encoding="utf-8")
    shown = newest(SHOWN)
    assert shown is not None
    assert insert(readme, excerpt(shown)) == readme, AGAIN
    assert index() == (RESULTS / "README.md").read_text(encoding="utf-8"), AGAIN
    for folder in folders():
        assert folder.name == publish.name_of(read_run(folder)), AGAIN
        rows = COLLECTIVES if holds_collectives(folder) else RECORDS
        assert {path.name for path in folder.iterdir()} == {
            "charts", f"{rows}.gz", "report.html", "report.md", "run.json",
        }, AGAIN  # fmt: skip


def page_of(folder: Path) -> Document:
    if holds_collectives(folder):
        return collectives.document(*collectives.load_collectives(folder))
    info, records, rows = load(folder)
    return document(info, records, tables_of(rows))


@pytest.mark.parametrize("folder", folders(ROOT / RESULTS), ids=lambda folder: folder.name)
def test_published_pages_are_up_to_date_but_for_their_pictures(folder: Path) -> None:
    made = page_of(folder)

    def text(page: str) -> list[str]:
        return [line for line in page.splitlines() if line and not line.startswith("![")]

    page = (folder / "report.md").read_text(encoding="utf-8")
    assert text(markdown_of(made, CHARTS)) == text(page), AGAIN
    assert f"<h1>{made.title}</h1>" in (folder / "report.html").read_text(encoding="utf-8")


def test_every_picture_and_page_that_is_named_is_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / RESULTS).glob("*/report.md")]
    assert len(pages) > 1
    for page in pages:
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("!["):
                assert (page.parent / line.rpartition("(")[2].rstrip(")")).is_file()
    text = (ROOT / RESULTS / "README.md").read_text(encoding="utf-8")
    assert all(f"({one.name}/report.md)" in text for one in folders(ROOT / RESULTS))
