"""Training scripts as people write them by hand, with nothing of this project in them."""

from __future__ import annotations

EMPTY = """\
import os, sys, time
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    print(time.monotonic())
dist.destroy_process_group()
"""

SINGLE = """\
import os, sys, time
import torch
import torchvision

warmup, steps, core = (int(word) for word in sys.argv[1:])
os.sched_setaffinity(0, {core})
torch.set_num_threads(1)
torch.manual_seed(0)
model = torchvision.models.resnet152(num_classes=1000).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
criterion = torch.nn.CrossEntropyLoss()
batches = [(torch.randn(2, 3, 32, 32), torch.randint(1000, (2,))) for _ in range(4)]

def step(index):
    images, labels = batches[index % 4]
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

for index in range(warmup):
    step(index)
begin = time.perf_counter()
for index in range(steps):
    step(index)
print(2 * steps / (time.perf_counter() - begin))
"""

DDP = """\
import os, sys, time
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

warmup, steps, *cores = (int(word) for word in sys.argv[1:])
rank = int(os.environ["RANK"])
os.sched_setaffinity(0, {cores[rank]})
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torchvision.models.resnet152(num_classes=1000).train()
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
criterion = torch.nn.CrossEntropyLoss()
torch.manual_seed(rank)
batches = [(torch.randn(2, 3, 32, 32), torch.randint(1000, (2,))) for _ in range(4)]

def step(index):
    images, labels = batches[index % 4]
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

for index in range(warmup):
    step(index)
dist.barrier()
begin = time.perf_counter()
for index in range(steps):
    step(index)
elapsed = torch.tensor(time.perf_counter() - begin)
dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
if rank == 0:
    print(2 * dist.get_world_size() * steps / elapsed.item())
dist.barrier()
del model
dist.destroy_process_group()
"""
