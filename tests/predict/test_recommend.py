from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from bench.errors import BenchError
from bench.predict import recommend as module
from bench.predict.memory_child import Question as MemoryQuestion
from bench.predict.network import Places
from bench.predict.recommend import Wish, recommend, rounded
from bench.predict.sweep import Question
from bench.records.advice import Advice
from bench.records.prediction import PredictedMemory
from bench.report.advice import as_data, markdown
from tests.predict.made import MIB, network, profile, single

GIB = 2**30
TWO = Places(hosts=1, per_host=2)


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten MiB and one more a sample; FSDP has half of the ten."""

    def answers(asked: Sequence[MemoryQuestion]) -> Iterator[PredictedMemory]:
        for one in asked:
            fixed = 5 if one.case.strategy == "fsdp" else 10
            peak = (fixed + one.case.per_device_batch) * MIB
            yield PredictedMemory(case=one.case, peak_bytes=peak)

    monkeypatch.setattr(module, "ask_memory", answers)


def asked(memory_mib: int, strategies: str = "ddp,fsdp", **changes: Any) -> Advice:
    made = profile(case=single(device="cuda", workload="transformer", preset="tiny"))
    question = Question(
        profile=made,
        network=network(**changes),
        errors={"": (0.1, 0.1)},
        basis="Made.",
    )
    wish = Wish(
        where="2 x made",
        places=TWO,
        strategies=strategies,
        memory_bytes=memory_mib * MIB,
        allowance_bytes=0,
    )
    return recommend(question, wish)


def test_the_largest_batch_that_fits_wins_and_the_asked_one_is_named() -> None:
    advice = asked(60, "ddp")
    assert advice.best is not None
    # 0.99 x 60 MiB leave 49 samples beside DDP's ten MiB; of those a multiple of eight is taken.
    assert advice.best.predicted.case.per_device_batch == 48
    assert advice.best.peak_bytes == 58 * MIB
    assert advice.at_asked_batch is not None
    assert advice.at_asked_batch.predicted.case.per_device_batch == 8
    assert advice.ruled_out == []


def test_batches_far_from_the_profile_s_are_not_trusted() -> None:
    advice = asked(1000, "ddp")
    assert advice.best is not None
    assert advice.best.predicted.case.per_device_batch == 8 * 8


def test_what_does_not_fit_is_shown_and_never_chosen() -> None:
    # DDP has 10 + 8 of 16 MiB, so that only a smaller batch fits; FSDP 5 + 8.
    advice = asked(16)
    assert [one.predicted.case.label for one in advice.ruled_out] == ["ddp"]
    assert "does not fit" in str(advice.ruled_out[0].reason)
    assert all(one.peak_bytes is not None and one.peak_bytes <= 16 * MIB for one in advice.eligible)
    assert {one.predicted.case.strategy for one in advice.eligible} == {"ddp", "fsdp"}
    nothing = asked(5)
    assert nothing.best is None
    assert "**No recommendation**: nothing is predicted to fit." in markdown(nothing)
    assert as_data(nothing)["choice"] is None
    assert "- ddp at a batch of 8: does not fit: " in markdown(nothing)


def test_a_setting_that_brings_nothing_is_not_taken() -> None:
    # Links so quick that no cap of buckets matters.
    advice = asked(100, "ddp,ddp(gradient_as_bucket_view=true)", bytes_per_s=1e6 * MIB)
    assert advice.best is not None
    assert advice.best.predicted.case.label == "ddp"
    assert advice.best.settings == 0


def test_a_cap_that_brings_much_is_taken() -> None:
    # Four gradients of one MiB. torch's own rule sends the last three at the end, in one bucket.
    advice = asked(19, "ddp")
    assert advice.best is not None
    assert advice.best.predicted.case.label == "ddp(bucket_cap_mb=1)"
    assert advice.best.settings == 1


def test_the_page_says_of_every_figure_that_it_was_predicted() -> None:
    page = markdown(asked(100))
    assert page.startswith("# What to use on 2 x made, 0.09766 GiB each: predicted\n")
    assert "**Nothing here was measured on such devices.** Made." in page
    assert ", predicted" in page
    assert "Runner-up: " in page
    assert "within the error of predictions, so measure both" in page
    assert "and was not measured." in " ".join(page.split())
    assert "```python" in page
    assert "all else is what was measured" not in page


def test_data_has_no_pieces_of_work_and_says_what_it_is() -> None:
    data = as_data(asked(100))
    assert data["kind"] == "predicted"
    assert data["choice"]["predicted"]["moments"] == []
    assert "torch" in data["code"]


def test_batches_are_those_that_people_use() -> None:
    assert [rounded(batch) for batch in (1, 7, 8, 15, 16, 100)] == [1, 7, 8, 8, 16, 96]


def test_no_memory_beside_the_allowance_is_a_mistake() -> None:
    made = profile(case=single(device="cuda"))
    wish = Wish(where="here", places=TWO, memory_bytes=GIB, allowance_bytes=GIB)
    with pytest.raises(BenchError, match="after the allowance"):
        recommend(Question(profile=made, network=network()), wish)


def test_the_links_at_which_the_choice_flips_are_those_of_what_fits() -> None:
    advice = asked(19, "ddp,zero")
    if advice.flips_to is not None:
        labels = {one.predicted.case.label for one in advice.eligible}
        assert advice.flips_to in labels
    alone = asked(19, "ddp")
    assert alone.flips_to is None
    assert "No other strategy is predicted to be quicker" in markdown(
        msgspec.structs.replace(alone, flips_to=None, flips_at_bytes_per_s=None)
    )
