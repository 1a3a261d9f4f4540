"""How torch's agents are kept from waiting for hosts that are gone."""

from __future__ import annotations

from typing import Any, cast

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.launcher import api

from bench.run import elastic


class Handler:
    """Of a rendezvous that is over."""

    def get_run_id(self) -> str:
        return "one"


def test_an_agent_goes_when_another_host_has_died_after_its_ranks_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert elastic.EXIT_S < 60  # torch has 300 s
    monkeypatch.setattr(elastic, "EXIT_S", 0.1)
    spec = WorkerSpec(
        role="default",
        local_world_size=1,
        rdzv_handler=cast("RendezvousHandler", Handler()),
        entrypoint=print,
    )
    starter: Any = api
    before = starter.LocalElasticAgent
    with elastic.brief_exit():
        agent = starter.LocalElasticAgent(spec=spec, logs_specs=DefaultLogsSpecs())
    assert starter.LocalElasticAgent is before
    agent._store = HashStore()
    agent._worker_group.group_world_size = 2
    agent._exit_barrier()  # the other agent never comes
    assert not getattr(agent, "_in_exit_barrier", False)  # not on torch 2.11
