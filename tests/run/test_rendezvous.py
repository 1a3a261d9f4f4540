from __future__ import annotations

import pytest

from bench.errors import BenchError
from bench.run.rendezvous import Rendezvous, first_host, parse_endpoint, read_rendezvous

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "7",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "GROUP_WORLD_SIZE": "3",
    "GROUP_RANK": "2",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "a1",
    "MASTER_PORT": "4321",
}
SRUN = {
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "123456",
}


def test_flags_mean_what_they_mean_to_torchrun() -> None:
    found = read_rendezvous(
        {},
        nnodes="2",
        node_rank=1,
        endpoint="10.0.0.1",
        id_="mine",
        conf="join_timeout=30",
    )
    assert found == Rendezvous(
        nodes=2, node_rank=1, host="10.0.0.1", port=29400, id="mine", join_timeout_s=30.0
    )
    assert found.endpoint == "10.0.0.1:29400"


@pytest.mark.parametrize("nnodes", [None, "1", "1:1"])
def test_one_host_meets_nobody(nnodes: str | None) -> None:
    assert read_rendezvous({}, nnodes=nnodes) is None


def test_torchrun_holds_the_port_that_it_names() -> None:
    found = read_rendezvous(TORCHRUN)
    assert found == Rendezvous(
        nodes=3, node_rank=2, host="a1", port=0, id="7", told_by=("a1", 4321)
    )
    of_its_own = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    free = read_rendezvous(of_its_own)
    assert free is not None
    assert (free.port, free.told_by) == (4321, None)


def test_srun_names_the_hosts_and_the_job() -> None:
    assert read_rendezvous(SRUN) == Rendezvous(
        nodes=2, node_rank=1, host="gpu07", port=20_000 + 3456, id="123456"
    )


def test_flags_come_before_variables() -> None:
    found = read_rendezvous(SRUN, nnodes="2", node_rank=0, endpoint="login:1")
    assert found is not None
    assert (found.node_rank, found.host, found.port, found.id) == (0, "login", 1, "123456")


def test_a_batch_script_is_no_step_of_several_hosts() -> None:
    assert read_rendezvous({"SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "0"}) is None


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"nnodes": "2"}, "--nnodes 2 needs --node-rank, from 0 to 1"),
        ({"nnodes": "2", "node_rank": 2, "endpoint": "a"}, "from 0 to 1"),
        ({"nnodes": "2", "node_rank": 0}, "needs --rdzv-endpoint HOST:PORT"),
        ({"nnodes": "1:4"}, "hosts come and go"),
        ({"nnodes": "two"}, "is no number of hosts"),
        ({"nnodes": "0"}, "is no number of hosts"),
        ({"node_rank": 1}, "need --nnodes"),
        ({"endpoint": "a:1"}, "need --nnodes"),
        ({"nnodes": "2", "node_rank": 0, "endpoint": "a b"}, "is no HOST:PORT"),
        ({"nnodes": "2", "node_rank": 0, "endpoint": "a:70000"}, "is no HOST:PORT"),
        ({"nnodes": "2", "node_rank": 0, "endpoint": "a", "conf": "timeout=3"}, "no 'timeout'"),
        ({"nnodes": "2", "node_rank": 0, "endpoint": "a", "conf": "join_timeout=0"}, "no number"),
    ],
)
def test_what_is_missing_is_said(told: dict[str, object], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        read_rendezvous({}, **told)  # type: ignore[arg-type] # as a user might


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, "use --nproc-per-node 1"),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "8"}, "use --ntasks-per-node=1"),
        (TORCHRUN | {"GROUP_RANK": "x"}, "GROUP_RANK='x' in the environment is no number"),
    ],
)
def test_bench_starts_its_own_ranks(environ: dict[str, str], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        read_rendezvous(environ)


def test_endpoints() -> None:
    assert parse_endpoint("[fe80::1]") == ("fe80::1", 29400)
    assert Rendezvous(nodes=2, node_rank=0, host="fe80::1", port=9).endpoint == "[fe80::1]:9"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[01,05]-x,m", "n01-x"), ("n[9]", "n9")],
)
def test_slurms_short_lists(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
