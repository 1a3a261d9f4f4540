"""Imported once by the fork server, so that no rank has to: what every launch needs."""

import gc

import torch._dynamo
import torchvision

from bench.plan.registry import all_strategies, all_workloads
from bench.run import worker

# The optimizer's first step imports torch._dynamo; finding a workload imports its file,
# and building one torchvision.
PRELOADED = (torch._dynamo, torchvision, worker, all_strategies(), all_workloads())

# What was imported here never dies. A rank whose collector walked through it all would spend a
# tenth of a second on that in the middle of a window, and copy every page it touched.
gc.collect()
gc.freeze()
