"""Measure the peak memory of the loss of a large vocabulary, each variant in a process of its own.

    python benchmarks/peak_memory.py

The loss and its gradients are computed for 4096 hidden states of width 128 and 16384 classes, whose
logits take 256 MiB. A line shows by how much the resident memory of the process grew.
"""

import argparse
import resource
import subprocess
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import composable.functional as F

ROWS, WIDTH, CLASSES = 4096, 128, 16384
CHUNKS = {f"linear_cross_entropy in chunks of {size}": size for size in (1024, 256, 64)}
VARIANTS = ["cross_entropy of all logits", *CHUNKS, "that of torch, in chunks"]


def growth(variant: str) -> float:
    """Compute a loss and its gradients, and return the growth of the peak memory in MiB."""
    hidden = torch.randn(ROWS, WIDTH, requires_grad=True)
    head = torch.randn(CLASSES, WIDTH, requires_grad=True)
    targets = torch.randint(CLASSES, (ROWS,))
    hidden.grad, head.grad = torch.zeros_like(hidden), torch.zeros_like(head)
    small = F.linear_cross_entropy(hidden[:8], head[:8], targets[:8] % 8)
    small.backward()  # loads what torch loads at the first call
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if variant in CHUNKS:
        loss = F.linear_cross_entropy(hidden, head, targets, chunk_size=CHUNKS[variant])
    elif variant == VARIANTS[0]:
        loss = cross_entropy(hidden @ head.mT, targets)
    else:
        loss = torch.nn.functional.linear_cross_entropy(
            hidden, head, targets, options=nn.LinearCrossEntropyOptions()
        )
    loss.backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024  # kiB on Linux


def main() -> None:
    """Measure one variant, or all, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", nargs="?", choices=[*VARIANTS, []])
    variant = parser.parse_args().variant
    torch.set_num_threads(1)
    if variant:
        print(f"{variant:<40} {growth(variant):6.0f} MiB", flush=True)
        return
    for one in VARIANTS:
        subprocess.run([sys.executable, __file__, one], check=True)


if __name__ == "__main__":
    main()
