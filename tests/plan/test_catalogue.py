from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from bench.cli import run_command_line
from bench.plan import handbook
from bench.plan.case import Natural, PositiveFloat, Window
from bench.plan.catalogue import Entry, data, lines, settings, strategies, workloads
from bench.plan.fields import Settings, Variables
from bench.plan.options import options_of, type_words
from bench.strategies.base import Options
from tests.test_architecture import ROOT

LACKING = (
    "{owner}.{name} lacks {lacks}: write, in the docstring under that field, what it does, then "
    'one sentence that begins with "Helps" and one that begins with "Costs"'
)


class Made(Options, frozen=True, kw_only=True):
    """Options of a strategy that no one has."""

    inherited: bool = False
    """Do it. Helps a lot. Costs ``nothing``, if all goes well (it does). Costs little else."""


class Further(Made, frozen=True, kw_only=True):
    """With one more, which says too little."""

    mode: Literal["slow", "fast"] | None = None
    """Helps always: no word of what it does."""
    bare: int = 3


@pytest.mark.parametrize(
    "entry", [*strategies(), *settings(), *data()], ids=lambda entry: entry.name
)
def test_every_option_says_what_it_does_when_it_helps_and_what_it_costs(entry: Entry) -> None:
    for one in entry.options:
        assert not one.lacks, LACKING.format(
            owner=entry.name, name=one.name, lacks=" and ".join(one.lacks)
        )


def test_every_option_of_a_workload_says_what_it_does() -> None:
    for entry in workloads():
        for one in entry.options:
            assert one.what, f"{entry.name}.{one.name} has no docstring under its field"


def test_the_parts_are_told_by_their_first_words() -> None:
    inherited, mode, bare = options_of(Further)
    assert inherited.what == "Do it."
    assert inherited.helps == "Helps a lot."
    assert inherited.costs == "Costs ``nothing``, if all goes well (it does)."
    assert inherited.lacks == []
    assert mode.what == ""
    assert mode.helps == "Helps always: no word of what it does."
    assert mode.lacks == ["what", "costs"]
    assert bare.lacks == ["what", "helps", "costs"]
    assert (inherited.default, mode.default, bare.default) == (False, None, 3)
    assert [one.default_text for one in (inherited, mode, bare)] == ["false", "null", "3"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (bool, "true | false"),
        (Natural, "whole number from 0"),
        (PositiveFloat | None, "number above 0 | null"),
        (Literal["b", "a"], "b | a"),
        (Literal["b", "a"] | None, "b | a | null"),
        (Natural | Literal["auto"], "whole number from 0 | auto"),
        (list[PositiveFloat], "list of number above 0"),
        (Variables, "mapping of text to text"),
        (Window, "mapping of min_steps, max_s, target_interval"),
        (Any, "anything"),
    ],
)
def test_a_type_in_words(kind: Any, words: str) -> None:
    assert type_words(kind) == words


@pytest.mark.parametrize("entry", [*strategies(), *settings(), *data(), *workloads()])
def test_a_listing_fits_80_columns(entry: Entry) -> None:
    listed = list(lines(entry, 80))
    assert max(map(len, listed)) <= 80
    text = " ".join(" ".join(listed).split())
    for one in entry.options:
        assert f"{one.name}: {one.type}; default {one.default_text}" in text
        for part in (one.what, one.helps, one.costs):
            assert part.replace("``", "") in text


def test_settings_are_listed_with_their_parts_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["list", "settings", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in entry["options"]] == list(Settings.__struct_fields__)
    by_name = {one["name"]: one for one in entry["options"]}
    assert by_name["precision"].keys() == {"name", "type", "default", "what", "helps", "costs"}
    assert by_name["precision"]["type"] == "fp32 | tf32 | bf16-amp | fp16-amp | bf16"
    assert by_name["window"]["default"] == msgspec.to_builtins(Window())
    assert by_name["env"]["default"] == {}


def test_the_page_of_strategies_is_made_from_the_definitions() -> None:
    text = (ROOT / handbook.PAGE).read_text(encoding="utf-8")
    assert text == handbook.page(), "python -m bench.plan.handbook makes it again"


def test_the_page_is_written_within_the_project_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert handbook.main() == 2
    assert "no folder docs here" in capsys.readouterr().err
    (tmp_path / "docs").mkdir()
    assert handbook.main() == 0
    assert (tmp_path / handbook.PAGE).read_text(encoding="utf-8") == handbook.page()
