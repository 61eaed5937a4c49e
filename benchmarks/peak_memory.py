"""Measure the peak memory of losses, each variant in a process of its own.

    python benchmarks/peak_memory.py

A contrastive loss and its gradients are computed for 128 images of 64 x 64, by the network of
method_costs.py: of the batch, and with cached gradients in parts. The loss of a large vocabulary
and its gradients are computed for 4096 hidden states of width 128 and 16384 classes, whose
logits take 256 MiB. A line shows by how much the resident memory of the process grew.
"""

import argparse
import resource
import subprocess
import sys

import torch
from method_costs import network
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import composable.functional as F

ROWS, WIDTH, CLASSES = 4096, 128, 16384
CHUNKS = {f"linear_cross_entropy in chunks of {size}": size for size in (1024, 256, 64)}
PARTS = {f"cached_gradients in parts of {size}": size for size in (32, 16, 8)}
OF_A_VOCABULARY = ["cross_entropy of all logits", *CHUNKS, "that of torch, in chunks"]
VARIANTS = ["contrastive loss of a batch", *PARTS, *OF_A_VOCABULARY]


def contrast(outputs: Tensor) -> Tensor:
    """Compare each row with the next one, and with all others."""
    return cross_entropy(outputs @ outputs.roll(1, 0).T, torch.arange(len(outputs)))


def contrastive_growth(variant: str) -> float:
    """Compute a contrastive loss and its gradients, and return the growth of the peak in MiB."""
    model, images = network(), torch.randn(128, 3, 64, 64)
    params = dict(model.named_parameters())
    contrast(model(images[:2])).backward()  # loads what torch loads at the first call
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if variant in PARTS:
        F.cached_gradients(model, images.split(PARTS[variant]), contrast, params)
    else:
        torch.autograd.grad(contrast(model(images)), list(params.values()))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024  # kiB on Linux


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
    elif variant == OF_A_VOCABULARY[0]:
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
        measure = growth if variant in OF_A_VOCABULARY else contrastive_growth
        print(f"{variant:<40} {measure(variant):6.0f} MiB", flush=True)
        return
    for one in VARIANTS:
        subprocess.run([sys.executable, __file__, one], check=True)


if __name__ == "__main__":
    main()
