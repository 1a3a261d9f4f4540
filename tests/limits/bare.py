"""Training scripts as people write them by hand, with nothing of this project in them."""

from __future__ import annotations

EMPTY = """\
import time
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
batches = [(torch.randn(4, 3, 32, 32), torch.randint(1000, (4,))) for _ in range(4)]

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
print(4 * steps / (time.perf_counter() - begin))
"""
