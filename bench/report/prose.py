"""What every report says of how its figures are to be read."""

from __future__ import annotations

LARGEST = """\
Largest batch per device, searched by bisection, each batch in fresh processes for three steps (on a
CPU, memory of a device is what its process may allocate beyond what it held before the model was
built):"""

HOW_TO_READ = """\
Throughput counts the samples of all devices together over the time of the slowest process. `±` is
half of a 95 % interval, and brackets are its ends, from the spread between independent launches.
*Speedup* compares with one device without a wrapper, *vs itself on 1* with the same strategy on one
device, *against ddp* with DDP at torch's defaults on as many devices; *efficiency* is the speedup
over the number of devices. *No clear difference* means that noise may explain it: among all
comparisons of this report, or because equal cases that were measured twice differed as much (the
*noise floor*). What is called the fastest was seen in the same figures: another row is called
slower only if that is clear among all pairs that could have been first and second. *Step* is the
time of one optimizer step on the slowest process: the mean, the median and the time that nine in
ten do not exceed. Mean and median are far apart where a strategy synchronises in some steps only.

*Tensor* memory is the largest total of live tensors in steady steps, on each device; *resident* all
that a process holds, Python and libraries included; *reserved* what the allocator held, and
*driver* what the whole device had in use beyond what it had before. *Held between steps* are
parameters, buffers and optimizer state alone. The charts show what the peak of tensor memory is
made of: each allocation by what its process says it holds at that address, or by what made it and
how long it lived; what none of this tells is *unexplained*.

*GFLOP/s* are the operations of the model's own matrix products, convolutions and attention, forward
and backward, as torch counts them, over the time of a step; the *matrix rate* is what the same
device did in products of large square matrices of the same precision, right after the window of the
first launch and on all devices at once: the median of all rows on as many devices.

*Communication* is the time in which collectives moved data in a step, as a profile shows it:
waiting for a late rank is left out, and stands under *wait*. *Exposed* is the part of it during
which nothing was computed, *hidden* the share during which something was. *Sync cost* is something
else: a step with gradient synchronisation minus one without, no profile running, waiting included,
the optimizer left out; its interval is that of the steps of one launch. Of FSDP it is that of
gradients only. *Alone* is what the same collectives take one
after the other while nothing else is done, so that *communication* beyond it is what computation on
the same device slows down. Where these figures cannot all be right, the row says so. The
communication figures are those of a few steps
of one launch; bytes are the larger of input and output of a rank, added up over a step.

*Parity* is `exact` when the strategy trained the same model as one device: in fp64, the losses of
three steps and the first gradient within 1e-6, and the last parameters equal to the last bit on all
ranks; in the case's own precision, the first gradient within what reordering sums explains. `within
precision` means the same where that precision is so coarse that reordering explains more than a
thousandth of a gradient. The proof trains the same layers on little data: at most four samples a
micro-step, ResNet-152 on images of 32 x 32, the recommender with short tables. A figure that failed
its proof is struck out and compared with nothing; one that could not be proved says so.
"""

SETTINGS_TO_READ = """\
*Settings* stand against the plain ones of the same strategy on as many devices: its own defaults,
fp32, nothing compiled, one micro-step, each as far as the rows differ in it. *Against plain* is the
change of samples per second. Here alone other precisions, compile modes and numbers of micro-steps
are compared, since what they bring is the question; a footnote says where two rows do not train bit
for bit the same. A step, its collectives and their bytes are those of one optimizer step, with all
of its micro-steps. *Payload* is the larger of input and output of a rank, *least on the wire* what
it must send in a ring at least. *Buckets* are their number, and their sizes; of FSDP, those of its
units. What is *lossy by design* says how far its proof found it from one device: its first gradient
that is lossy, relative to the gradient's size; its losses; its last parameters, relative to how far
training moved them. A *ladder* adds one setting with each row, and shows the change from plain
settings and from the row above.
"""
