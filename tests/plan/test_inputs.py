"""Data sources as an axis: what is planned, what is skipped, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bench.errors import BenchError, SuiteError
from bench.plan import places
from bench.plan.case import Case
from bench.plan.matrix import expand
from bench.plan.places import place_of
from bench.plan.suite import parse_suite
from tests.fakes import EIGHT_GPUS, TWO_CORES
from tests.plan.test_matrix import block, plan
from workloads.data.folder import write_pictures

NET = "'torchvision:resnet18:tiny'"


def labels(text: str, **changes: Any) -> list[tuple[str, str]]:
    return [(one.case.data, one.case.data_label) for one in plan(text, **changes)]


def test_a_list_within_a_source_is_an_axis() -> None:
    data = "data: [device, {host: {workers: [0, 2], prefetch_factor: [2, 4]}}, stream]"
    assert labels(block(data)) == [
        ("device", ""),
        ("host", "host"),  # without workers nothing is prefetched: one case, not two
        ("host", "host(workers=2)"),
        ("host", "host(workers=2, prefetch_factor=4)"),
        ("stream", "stream"),
    ]


def test_a_case_holds_every_option_and_is_another_one_for_it() -> None:
    device, host, busy = (
        one.case for one in plan(block("data: [device, host, {host: {workers: 1}}]"))
    )
    assert device.data_options == {}
    assert host.data_options["workers"] == 0
    assert host.data_options["prefetch_factor"] == 2
    assert host.data_options.keys() == busy.data_options.keys()
    assert len({device.id, host.id, busy.id}) == 3
    assert "host" in host.id
    assert "host" not in device.id
    (plain,) = plan(block("seed: 0"))
    assert plain.case == device, "cases that were there before keep their ids"


def test_an_old_record_has_its_batches_from_the_device() -> None:
    (one,) = plan(block("seed: 0"))
    told = msgspec.to_builtins(one.case)
    del told["data_options"], told["data_label"]
    assert msgspec.convert(told, Case) == one.case


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("disk", "unknown data source 'disk'. Known: device, folder, host, stream, tokens"),
        ("{host: {worker: 1}}", "host has no option 'worker'; did you mean 'workers'?"),
        ("{host: {workers: -1}}", "workers must be 0 or more"),
        ("{host: {workers: []}}", "data[0].host.workers: is empty: there is nothing to run"),
        ("{device: {workers: 1}}", "device has no option 'workers'. It has none"),
        ("{tokens: {path: not.there}}", "there is no not.there in"),
        ("3", "must be a mapping of names to values, not 3"),
    ],
)
def test_a_mistake_is_told_with_its_place(data: str, message: str) -> None:
    with pytest.raises(SuiteError) as error:
        plan(block(f"data: {data}"))
    assert message in str(error.value)
    assert "my.yaml: matrix[0].data" in str(error.value)


@pytest.mark.parametrize(
    ("workload", "data", "reason"),
    [
        (NET, "tokens", "does not train on rows of token ids"),
        ("transformer:tiny", "folder", "does not train on square pictures"),
        ("embedding:tiny", "folder", "does not train on square pictures"),
        ("tests.fakes:PADDED:tiny", "host", "gives no samples one by one; let its problem have"),
        (NET, "{host: {pin_memory: true}}", "on a CPU nothing is copied"),
        (NET, "{host: {non_blocking: true}}", "on a CPU nothing is copied"),
        (NET, "{host: {samples: 6}}", "6 samples are not one batch of 4 for each of 2 processes"),
        (NET, "{stream: {samples: 12, workers: 2}}", "and 2 workers each"),
        (NET, "{host: {workers: 9}}", "18 workers would share 2 cores"),
        (NET, "{host: {workers: 8}}", None),
        (NET, "folder", None),
        ("transformer:tiny", "tokens", None),
        ("embedding:tiny", "[host, stream]", None),
        ("resnet152:tiny", "[host, stream, folder]", None),
    ],
)
def test_what_does_not_go_together_is_skipped(workload: str, data: str, reason: str | None) -> None:
    for one in plan(block(f"data: {data}, world_sizes: [2]", workload=workload)):
        if reason is None:
            assert one.skip_reason is None
        else:
            assert one.skip_reason is not None
            assert reason in one.skip_reason


def test_one_process_that_drives_all_devices_loads_the_batch_of_all() -> None:
    data = "data: {host: {samples: [7, 8]}}, world_sizes: [2]"
    few, enough = plan(block(data, workload=NET, strategy="dp"))
    assert few.skip_reason is not None
    assert "not one batch of 8 for each of 1 processes" in few.skip_reason
    assert enough.skip_reason is None


def test_shared_memory_is_looked_at_first() -> None:
    # 4 pictures of 3 x 32 x 32 numbers and a class: 49,184 bytes; five batches, two ranks
    needed = 2 * 5 * 4 * (3 * 32 * 32 * 4 + 8)
    text = block("data: {host: {workers: 2}}, world_sizes: [2]", workload=NET)
    for free, skipped in ((needed, False), (needed - 1, True)):
        machine = msgspec.structs.replace(TWO_CORES, shared_memory_bytes=free)
        (one,) = plan(text, machine)
        assert (one.skip_reason is not None) == skipped
    assert one.skip_reason is not None
    assert "docker run --shm-size" in one.skip_reason


def test_where_workers_run_is_said() -> None:
    (cpu,) = plan(block("data: {host: {workers: 1}}", workload=NET))
    assert "workers_share_cores" in cpu.flags
    few, many = plan(block("data: {host: {workers: [7, 8]}}, world_sizes: [8]"), EIGHT_GPUS)
    assert "many_workers" not in few.flags
    assert "many_workers" in many.flags


def test_a_filter_can_ask_for_a_source_and_its_options() -> None:
    text = block("data: [device, {host: {workers: [0, 1]}}]")
    (one,) = plan(text, only="data == host and data_options.workers == 1")
    assert one.case.data_label == "host(workers=1)"


def test_a_ladder_may_end_with_loading() -> None:
    text = (
        "matrix: [{workloads: [transformer:tiny], strategies: [ddp], "
        "ladder: [{data: {host: {workers: 1}}}]}]"
    )
    lower, upper = plan(text)
    assert upper.rung_below == lower.case.id
    with pytest.raises(SuiteError, match="a rung has one value of each setting"):
        plan(text.replace("workers: 1", "workers: [0, 1]"))


def test_ones_own_data_are_found_from_the_suites_folder(tmp_path: Path) -> None:
    np.zeros(400, dtype=np.uint16).tofile(tmp_path / "text.bin")
    (tmp_path / "photos").mkdir()
    write_pictures(tmp_path / "photos", images=2, classes=2, seed=0)

    def planned(data: str, workload: str = "transformer:tiny") -> Any:
        suite = parse_suite(
            block(f"data: {data}", workload=workload), source="my.yaml", folder=str(tmp_path)
        )
        (one,) = expand(suite, TWO_CORES)
        return one

    one = planned("{tokens: {path: text.bin}}")
    assert one.skip_reason is None
    assert one.case.data_options["path"] == "text.bin"
    assert place_of("text.bin") == str((tmp_path / "text.bin").resolve())
    np.ones(400, dtype=np.uint16).tofile(tmp_path / "other.bin")
    other = planned("{tokens: {path: other.bin}}")
    assert one.case.sources["text.bin"] != other.case.sources["other.bin"]
    pictures = planned("{folder: {path: photos}}", NET)
    assert "2 samples are not one batch of 4" in pictures.skip_reason
    with pytest.raises(SuiteError, match=r"cannot be read as folder: Not a directory"):
        planned("{folder: {path: text.bin}}", NET)


def test_a_host_that_did_not_plan_looks_in_its_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_places", {})
    monkeypatch.chdir(tmp_path)
    assert place_of(None) is None
    with pytest.raises(BenchError, match=r"there is no text\.bin in "):
        place_of("text.bin")
    (tmp_path / "text.bin").touch()
    assert place_of("text.bin") == str((tmp_path / "text.bin").resolve())


def test_workers_of_ones_own_file_are_forked(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def net():\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    draw = lambda n: (torch.ones(n, 2), torch.ones(n, 1))\n"
        "    return model, torch.nn.functional.mse_loss, draw\n"
    )
    data = "data: {host: {workers: 1, multiprocessing_context: [fork, spawn]}}"
    suite = parse_suite(block(data, workload="net.py"), source="my.yaml", folder=str(tmp_path))
    fork, spawn = (one.skip_reason for one in expand(suite, TWO_CORES))
    assert fork is None
    assert spawn is not None
    assert "cannot import net.py, which is in no package" in spawn
