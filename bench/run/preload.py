"""Imported once by the fork server, so that no rank has to: what every launch needs."""

import torch._dynamo

from bench.plan.registry import all_strategies, all_workloads
from bench.run import worker

# The optimizer's first step imports torch._dynamo; finding a workload imports its file.
PRELOADED = (torch._dynamo, worker, all_strategies(), all_workloads())
