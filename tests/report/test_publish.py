from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.errors import BenchError
from bench.records.store import RUN, read_run
from bench.report import publish
from tests.report.test_page import make_folder
from tests.test_architecture import ROOT

RESULTS = ROOT / publish.RESULTS


def test_a_complete_run_is_copied_and_listed(tmp_path: Path) -> None:
    results = tmp_path / "results"
    target = publish.publish(make_folder(tmp_path / "run"), results)
    assert target == results / "made"
    assert {path.name for path in target.iterdir()} == {"run.json", "records.jsonl"}
    text = publish.index(results)
    assert "## [made](made/report.md)" in text
    assert "Measured on 2 cores of a CPU, torch 2.9." in text


def test_a_run_takes_the_place_of_an_older_one_of_its_suite(tmp_path: Path) -> None:
    results = tmp_path / "results"
    target = publish.publish(make_folder(tmp_path / "run"), results)
    (target / "stale.md").write_text("old")
    publish.publish(make_folder(tmp_path / "again"), results)
    assert not (target / "stale.md").exists()


def test_publishing_what_is_published_changes_nothing(tmp_path: Path) -> None:
    results = tmp_path / "results"
    target = publish.publish(make_folder(tmp_path / "run"), results)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    assert publish.publish(target, results) == target
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert [path.name for path in results.iterdir()] == ["made"]


def test_a_run_that_was_interrupted_is_not_published(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run")
    info = read_run(folder)
    info.ended_by = "SIGINT"
    (folder / RUN).write_bytes(msgspec.json.encode(info))
    with pytest.raises(BenchError, match="no complete run: SIGINT"):
        publish.publish(folder, tmp_path / "results")


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


def test_a_first_run_of_another_suite_leaves_the_readme_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    readme = f"{publish.BEGIN}\nold\n{publish.END}\n"
    publish.README.write_text(readme)
    assert publish.main([str(folder)]) == 0
    assert publish.README.read_text() == readme
    assert (tmp_path / "results/made/report.md").is_file()
    assert "## [made]" in (tmp_path / "results/README.md").read_text()


def test_text_goes_between_the_comments_only() -> None:
    readme = f"before\n{publish.BEGIN}\nold\n{publish.END}\nafter\n"
    new = publish.insert(readme, "new")
    assert new == f"before\n{publish.BEGIN}\n\nnew\n\n{publish.END}\nafter\n"
    assert publish.insert(new, "new") == new
    with pytest.raises(BenchError, match="no place"):
        publish.insert("nothing", "new")


def test_the_readme_and_the_index_are_made_from_the_published_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    readme = publish.README.read_text(encoding="utf-8")
    excerpt = publish.excerpt(publish.RESULTS / publish.SHOWN)
    assert publish.insert(readme, excerpt) == readme, "nox -s publish makes it again"
    index = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert publish.index() == index, "nox -s publish makes it again"


def test_every_picture_of_the_published_pages_is_there() -> None:
    pages = [ROOT / "README.md", *RESULTS.glob("*/report.md")]
    assert len(pages) > 1
    for page in pages:
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("!["):
                assert (page.parent / line.rpartition("(")[2].rstrip(")")).is_file()
