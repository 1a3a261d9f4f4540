"""Where the hosts of a run meet: from torchrun's flags, or what torchrun or srun have set.

The flags are torchrun's, with its meanings: ``--nnodes``, ``--node-rank``, ``--rdzv-endpoint``,
``--rdzv-id``, ``--rdzv-conf join_timeout=SECONDS``. Each host starts the same command once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from bench.errors import BenchError

HOST_NAME = "BENCH_HOST_NAME"
"""Variable with this host's name, where its own says too little."""
PORT = 29400
"""torchrun's own where the endpoint names none."""
JOIN_TIMEOUT_S = 600.0
"""torchrun's own."""
MOST_HOSTS = 4096
SLURM_PORTS = (20_000, 10_000)
"""First port, and number of them, for jobs that name none: by the job's number, so that two jobs
that share a host rarely share a port. Below those that Linux gives away, from 32768."""
NODES = re.compile(r"(?P<prefix>[^\[,]+)(?:\[(?P<first>\d+)[^\]]*\](?P<suffix>[^,]*))?")
"""The first host of Slurm's short form of a list."""


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """Where the hosts meet, and which of them this one is."""

    nodes: int
    node_rank: int
    host: str
    """On which node 0 runs, as the other hosts reach it."""
    port: int
    """On which it listens; with ``told_by``, any that is free."""
    id: str = "none"
    """Of the run: hosts of another one are turned away."""
    join_timeout_s: float = JOIN_TIMEOUT_S
    """For all hosts to come."""
    told_by: tuple[str, int] | None = None
    """Address of the store through which torchrun's processes learn of the port; None where all
    know it."""

    @property
    def endpoint(self) -> str:
        """As it is written on the command line."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_rendezvous(
    environ: Mapping[str, str],
    *,
    nnodes: str | None = None,
    node_rank: int | None = None,
    endpoint: str | None = None,
    id_: str | None = None,
    conf: str | None = None,
) -> Rendezvous | None:
    """Where this run's hosts meet; None for a run on this host alone.

    Flags come before variables, and torchrun's variables before srun's.

    Args:
        environ: of this process.
        nnodes: number of hosts.
        node_rank: of this one, from 0.
        endpoint: ``HOST[:PORT]`` of node 0.
        id_: of the run.
        conf: settings of the rendezvous, ``NAME=VALUE,...``.

    Raises:
        BenchError: what is missing, or contradicts itself.
    """
    found = _of_torchrun(environ) or _of_srun(environ)
    nodes = found.nodes if found is not None and nnodes is None else _count(nnodes)
    if nodes == 1:
        if node_rank or endpoint is not None:
            raise BenchError("--node-rank and --rdzv-endpoint need --nnodes with 2 or more hosts")
        return None
    rank = found.node_rank if found is not None and node_rank is None else node_rank
    if rank is None or not 0 <= rank < nodes:
        raise BenchError(f"--nnodes {nodes} needs --node-rank, from 0 to {nodes - 1} on each host")
    if endpoint is not None:
        host, port = parse_endpoint(endpoint)
        told_by = None
    elif found is not None:
        host, port, told_by = found.host, found.port, found.told_by
    else:
        raise BenchError(
            f"--nnodes {nodes} needs --rdzv-endpoint HOST:PORT of node 0, the same on every host"
        )
    return Rendezvous(
        nodes=nodes,
        node_rank=rank,
        host=host,
        port=port,
        id=id_ or (found.id if found is not None else "none"),
        join_timeout_s=_join_timeout(conf),
        told_by=told_by,
    )


def _count(nnodes: str | None) -> int:
    text = "1" if nnodes is None else nnodes.strip()
    least, _, most = text.partition(":")
    if not least.isdecimal() or (most and not most.isdecimal()):
        raise BenchError(f"--nnodes: {text!r} is no number of hosts")
    if most and most != least:
        raise BenchError(
            f"--nnodes {text}: a run whose hosts come and go measures nothing; write one number"
        )
    if not 1 <= int(least) <= MOST_HOSTS:
        raise BenchError(f"--nnodes: {least} is no number of hosts between 1 and {MOST_HOSTS}")
    return int(least)


def parse_endpoint(text: str) -> tuple[str, int]:
    """Host and port of an endpoint.

    >>> parse_endpoint("node01:29500"), parse_endpoint("node01"), parse_endpoint("[fd00::1]:80")
    (('node01', 29500), ('node01', 29400), ('fd00::1', 80))

    Raises:
        BenchError: it is none.
    """
    found = re.fullmatch(
        r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\s\[\]:]+))(?::(\d{1,5}))?", text
    )
    port = int(found[3]) if found is not None and found[3] else PORT
    if found is None or not 0 < port < 2**16:
        raise BenchError(f"--rdzv-endpoint: {text!r} is no HOST:PORT")
    return found["v6"] or found["host"], port


def _join_timeout(conf: str | None) -> float:
    """Of torchrun's own settings, the only one that means something here."""
    timeout_s = JOIN_TIMEOUT_S
    for part in filter(None, (conf or "").split(",")):
        name, _, value = part.partition("=")
        if name.strip() != "join_timeout":
            raise BenchError(f"--rdzv-conf: no {name.strip()!r}; known is join_timeout")
        if not re.fullmatch(r"\d{1,6}(\.\d+)?", value.strip()) or not float(value):
            raise BenchError(f"--rdzv-conf: join_timeout={value!r} is no number of seconds")
        timeout_s = float(value)
    return timeout_s


def _of_torchrun(environ: Mapping[str, str]) -> Rendezvous | None:
    """What torchrun has told the process that it has started."""
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    local = _number(environ, "LOCAL_WORLD_SIZE")
    if local > 1:
        raise BenchError(
            f"torchrun has started {local} processes on this host, and bench starts its own ranks:"
            " use --nproc-per-node 1"
        )
    port = _number(environ, "MASTER_PORT")
    store = (environ["MASTER_ADDR"], port)
    is_taken = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun's own store
    return Rendezvous(
        nodes=_number(environ, "GROUP_WORLD_SIZE"),
        node_rank=_number(environ, "GROUP_RANK"),
        host=store[0],
        port=0 if is_taken else port,
        id=environ["TORCHELASTIC_RUN_ID"],
        told_by=store if is_taken else None,
    )


def _of_srun(environ: Mapping[str, str]) -> Rendezvous | None:
    """What srun has told a task of its step; a batch script itself is no step of several hosts."""
    if "SLURM_STEP_NUM_NODES" not in environ:
        return None
    nodes = _number(environ, "SLURM_STEP_NUM_NODES")
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    if tasks != nodes:
        raise BenchError(
            f"srun has started {tasks} tasks on {nodes} hosts, and bench starts its own ranks: use"
            " --ntasks-per-node=1"
        )
    first, count = SLURM_PORTS
    job = environ.get("SLURM_JOB_ID", "0")
    return Rendezvous(
        nodes=nodes,
        node_rank=_number(environ, "SLURM_NODEID"),
        host=first_host(environ.get("SLURM_STEP_NODELIST") or environ["SLURM_JOB_NODELIST"]),
        port=first + (int(job) if job.isdecimal() else 0) % count,
        id=job,
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    if not value.isdecimal():
        raise BenchError(f"{name}={value!r} in the environment is no number")
    return int(value)


def first_host(nodes: str) -> str:
    """The first of Slurm's short form of a list of hosts.

    >>> first_host("gpu[07-09,12]-ib,login1"), first_host("a,b")
    ('gpu07-ib', 'a')
    """
    found = NODES.match(nodes)
    if found is None:
        raise BenchError(f"Slurm's list of hosts cannot be read: {nodes!r}")
    return f"{found['prefix']}{found['first'] or ''}{found['suffix'] or ''}"
