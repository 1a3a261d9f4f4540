from __future__ import annotations

import pytest

from bench.errors import FilterError
from bench.plan.filter import compile_filter, matching
from tests.fakes import make_case

CASE = make_case(
    strategy="ddp",
    world_size=2,
    precision="bf16-amp",
    options={"bucket_cap_mb": 25.0, "static_graph": True},
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("strategy == ddp", True),
        ("strategy == 'ddp'", True),
        ("strategy != ddp", False),
        ("world_size <= 2 and strategy == ddp", True),
        ("world_size > 2 or precision == bf16-amp", True),
        ("not world_size == 2", False),
        ("1 < world_size < 4", True),
        ("strategy in (single, ddp)", True),
        ("strategy not in [single]", True),
        ("options.bucket_cap_mb == 25", True),
        ("options.static_graph == true", True),
        ("options.unknown == null", True),
        ("options.unknown < 3", False),
        ("workload_options.layers == 2", True),
        ("compile == none", True),
        ("seed > -1", True),
    ],
)
def test_expressions(expression: str, expected: bool) -> None:
    assert compile_filter(expression)(CASE) is expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "cannot be read"),
        ("strategy ==", "cannot be read"),
        ("link == 1gbit", "with quotes around such a word"),
        ("strategy", "compares nothing"),
        ("strategy == ddp or fsdp", "'fsdp' compares nothing; write it like"),
        ("not strategy", "compares nothing"),
        ("strat == ddp", "'strat' is no field of a case; did you mean 'strategy'"),
        ("__import__('os').system('true') == 1", "no field"),
        ("strategy == __import__('os')", "not allowed"),
        ("strategy is ddp", "only == != < <= > >= in, not in compare"),
        ("strategy == [x for x in y]", "not allowed"),
        ("(" * 1000, "cannot be read"),
    ],
)
def test_mistakes(expression: str, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        compile_filter(expression)


def test_no_filter_matches_everything() -> None:
    assert matching(None)(CASE)


def test_an_option_that_nothing_has_gives_a_hint() -> None:
    known = {"options": {"bucket_cap_mb", "static_graph"}, "workload_options": {"layers"}}
    assert compile_filter("options.bucket_cap_mb == 25", known)(CASE)
    message = "nothing here has an option 'bucket_cap'; did you mean 'bucket_cap_mb'"
    with pytest.raises(FilterError, match=message):
        compile_filter("world_size == 2 and not options.bucket_cap == 25", known)
    with pytest.raises(FilterError, match="did you mean 'layers'"):
        compile_filter("workload_options.layer in (1, 2)", known)


def test_a_filter_is_short_in_messages_and_shallow() -> None:
    with pytest.raises(FilterError, match="nested too deeply") as caught:
        compile_filter("not " * 150 + "seed == 1")
    assert len(str(caught.value)) < 400
    assert compile_filter(" and ".join(["world_size == 2"] * 500))(CASE)
    with pytest.raises(FilterError, match="cannot be read"):
        compile_filter("world_size == 1and seed == '\\d'\x00")
