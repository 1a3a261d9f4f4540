from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import pytest
import torch
import torchvision

from bench.errors import BenchError
from bench.predict.architectures import layers_of
from bench.predict.catalogue import catalogue, gigabits, network_of, published
from bench.predict.network import Places, cost
from bench.predict.published import Point, points
from bench.predict.published_profile import profile_of, single_of
from bench.predict.scoreboard import LOADER, expected_errors, published_scores
from bench.predict.site import site_of
from bench.records.profile import fault_of_profile
from bench.records.scaling import Scored
from bench.report.prediction import mean_error


@pytest.fixture(scope="module")
def rows() -> Sequence[Point]:
    return points()


@pytest.fixture(scope="module")
def scores(rows: Sequence[Point]) -> Sequence[Scored]:
    return published_scores(rows)


@pytest.mark.parametrize(
    "name", ["resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d"]
)
def test_residual_networks_have_torchvisions_parameters(name: str) -> None:
    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
    sizes = sorted(one.numel() for one in model.parameters())
    layers = layers_of(catalogue().models[name])
    assert sorted(size for layer in layers for size in layer.parameters) == sizes


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt-82m", 82_601_472),  # its source's own count
        ("ncf", 31_832_577),
        ("transformer-xl-base", 191_950_298),
    ],
)
def test_other_models_have_their_sources_parameters(name: str, parameters: int) -> None:
    layers = layers_of(catalogue().models[name])
    assert sum(sum(layer.parameters) for layer in layers) == parameters


def test_a_published_profile_is_of_the_published_step() -> None:
    single = single_of(model="resnet152", device="A100 80 GB", throughput=156, per_device_batch=64)
    made = profile_of(single, catalogue())
    assert fault_of_profile(made) is None
    assert made.step_s == pytest.approx(64 / 156)
    assert made.backward_s == pytest.approx(2 * made.forward_s)
    assert made.gradient_bytes == 4 * 60_192_808
    assert sum(one.bytes for one in made.units) == made.gradient_bytes
    assert sum(one.backward_s for one in made.units) == pytest.approx(made.backward_s)
    # The classifier's gradients come first, the first convolution's last.
    assert [one.name for one in made.gradients[:2]] == ["fc.1", "fc.0"]
    assert made.gradients[-1].name == "stem.0"
    assert made.gradients[-1].ready_s == pytest.approx(made.backward_s)


def test_a_tied_weight_is_ready_when_backward_ends() -> None:
    single = single_of(
        model="transformer-xl-base", device="A100 40 GB", throughput=200, per_device_batch=32
    )
    last = profile_of(single, catalogue()).gradients[-1]
    assert (last.name, last.bytes) == ("tokens.0", 4 * 267_735 * 512)


def test_any_other_model_is_equal_pieces_of_its_gradients() -> None:
    single = single_of(
        model="mine",
        device="V100",
        throughput=10,
        per_device_batch=5,
        gradient_bytes=40 * 2**20 + 400,
    )
    made = profile_of(single, catalogue())
    assert fault_of_profile(made) is None
    assert made.step_s == pytest.approx(0.5)
    assert [one.bytes for one in made.gradients[:2]] == [400, 2**20]
    assert made.gradient_bytes == 40 * 2**20 + 400
    assert [one.bytes // 2**20 for one in made.units] == [16, 16, 8, 0]


def test_what_nothing_is_known_of_is_refused() -> None:
    with pytest.raises(BenchError, match="did you mean 'resnet50'"):
        single_of(model="resnet5", device="V100", throughput=1, per_device_batch=1)
    with pytest.raises(BenchError, match="above 0"):
        single_of(model="resnet50", device="V100", throughput=0, per_device_batch=1)
    with pytest.raises(BenchError, match="no optimizer 'adamm'"):
        single_of(
            model="resnet50", device="V100", throughput=1, per_device_batch=1, optimizer="adamm"
        )


def test_every_figure_of_the_catalogue_has_a_source() -> None:
    known = catalogue()
    sources = [one.source for one in known.devices] + [one.source for one in known.links]
    sources += [known.contention.source, known.variation.source, known.kernel.source]
    sources.append(known.between_hosts.source)
    assert all(len(one) > 10 for one in sources)
    for link in known.links:
        for curve in link.curves:
            assert curve.source or published()[curve.published or ""]["source"]
    assert {table.id for table in known.tables} <= set(published())


def test_published_curves_are_what_the_link_does() -> None:
    link = network_of("A100 NVLink")
    eight = cost(link, "all_reduce", 2**30, Places(hosts=1, per_host=8))
    assert eight.in_row_s == pytest.approx(8203.9e-6)
    four = cost(link, "all_reduce", 134217728, Places(hosts=1, per_host=4))
    assert four.in_row_s == pytest.approx(974.9e-6)
    # From the bus bandwidth: 1.75 x 2^30 bytes at 463.58 GB/s.
    in_switch = cost(network_of("H200 NVLink"), "all_reduce", 2**30, Places(hosts=1, per_host=8))
    assert in_switch.in_row_s == pytest.approx(1.75 * 2**30 / 463.58e9, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100 Gbit/s", 12.5e9), ("4 x 100 Gbit/s", 50e9), ("300 Mbit", 37.5e6), ("2.5gbit", 0.3125e9)],
)
def test_rates_of_links(text: str, rate: float) -> None:
    assert gigabits(text) == pytest.approx(rate)


def test_devices_that_somebody_may_rent() -> None:
    one = site_of("8 x A100 80 GB NVLink")
    assert (one.device.name, one.link, one.between) == ("A100 80 GB", "A100 NVLink", None)
    assert one.places == Places(hosts=1, per_host=8)
    several = site_of("4 hosts x 8 at 100 Gbit/s")
    assert (several.between, several.places.ranks) == ("100 Gbit/s", 32)
    dear = site_of("2 hosts x 4 x H100 NVLink at 4 x 200 Gbit/s")
    assert (dear.link, dear.between, dear.places.ranks) == ("H100 NVLink", "4 x 200 Gbit/s", 8)
    assert site_of("4 x V100 PCIe 3").link == "PCIe 3"
    for text in ("8 x A100 80GB NVLink", "8 x a100 80 gb SXM4 NVLink", "8 x A100 80 GB"):
        assert (site_of(text).device.name, site_of(text).link) == ("A100 80 GB", "A100 NVLink")
    assert site_of("8 x V100 32GB NVLink").device.name == "V100"
    assert site_of("8 x A100 NVLink").device.name == "A100 40 GB"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("many", "describes no devices"),
        ("0 x V100 NVLink", "at least one"),
        ("8 x Z9000 NVLink", "no device 'Z9000 NVLink'"),
        ("8 x A40 NVLink", "no link 'A40 NVLink'"),
        ("2 hosts x 8", "say how fast hosts are linked"),
    ],
)
def test_what_describes_no_devices(text: str, what: str) -> None:
    with pytest.raises(BenchError, match=what):
        site_of(text)


def test_all_tables_that_were_promised_are_scored(scores: Sequence[Scored]) -> None:
    counts = {one.table: 0 for one in scores}
    for one in scores:
        counts[one.table] += 1
    assert counts == {
        "article-resnet152-a100-ddp": 3,
        "article-resnet152-a100-dp": 1,
        "torch-ddp-benchmark-v100": 16,
        "nvidia-resnet50-one-to-eight": 4,
        "nvidia-transformer-xl-base-a100": 6,
        "nvidia-ncf-a100": 2,
        "dlperf-resnet50-input-pipeline": 10,
        "gpt-82m-a40x4-bucket-sweep": 4,
    }


def test_measured_efficiencies_are_the_sources(scores: Sequence[Scored]) -> None:
    by_name = {(one.table, one.row, one.devices): one.measured for one in scores}
    assert by_name["article-resnet152-a100-dp", "A100 80GB SXM, one host, fp32", 4] == (
        pytest.approx(249 / (4 * 156))
    )
    assert by_name["torch-ddp-benchmark-v100", "resnet50", 16] == pytest.approx(306 / 329)
    assert by_name["nvidia-ncf-a100", "tf32", 8] == pytest.approx(110.16 / (8 * 22.59))
    assert by_name["gpt-82m-a40x4-bucket-sweep", "bucket cap 64 MB", 4] == (
        pytest.approx(141.12 / 166.80)
    )


def test_the_timeline_beats_one_constant_and_both_models_of_a_line(
    scores: Sequence[Scored],
) -> None:
    counted = [one for one in scores if one.left_out is None]
    timeline = mean_error(counted, lambda one: one.predicted)
    assert timeline is not None
    others = (
        lambda one: one.constant,
        lambda one: one.no_overlap,
        lambda one: one.full_overlap,
    )
    for read in others:
        other = mean_error(counted, read)
        assert other is not None
        assert timeline < other


def test_the_constant_is_fitted_to_the_other_tables_alone(scores: Sequence[Scored]) -> None:
    sweep = "gpt-82m-a40x4-bucket-sweep"
    others = [one for one in scores if one.table != sweep and one.left_out != LOADER]
    (constant,) = {one.constant for one in scores if one.table == sweep}
    assert constant == pytest.approx(statistics.median(one.measured for one in others))


def test_the_sweep_is_predicted_in_its_order(scores: Sequence[Scored]) -> None:
    sweep = [one for one in scores if one.table == "gpt-82m-a40x4-bucket-sweep"]
    by_prediction = sorted(sweep, key=lambda one: -one.predicted)
    assert by_prediction == sorted(sweep, key=lambda one: -one.measured)


def test_the_error_to_expect_is_that_of_eight_rows_in_ten() -> None:
    made = [
        Scored(
            table="t",
            row=str(number),
            strategy="ddp",
            devices=2,
            measured=number / 100,
            predicted=1.0,
            no_overlap=1.0,
            full_overlap=1.0,
        )
        for number in range(50, 151)
    ]
    found = expected_errors(made)
    assert found["ddp"] == pytest.approx((0.4, 0.4))
    assert found[""] == found["ddp"]
    alone = [msgspec.structs.replace(one, left_out="why", strategy="dp") for one in made]
    assert set(expected_errors(alone)) == {"dp"}


def test_no_row_is_left_out_of_the_error_but_for_its_own_sources_reason(
    scores: Sequence[Scored],
) -> None:
    left_out = {(one.table, one.row) for one in scores if one.left_out is not None}
    assert left_out == {
        ("article-resnet152-a100-dp", "A100 80GB SXM, one host, fp32"),
        ("dlperf-resnet50-input-pipeline", "DataLoader 8 workers"),
    }
