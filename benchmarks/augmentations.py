"""RandAugment and AugMix against the libraries that have them, on batches of uint8 images.

Candidates run in turns, and the ratios are taken turn by turn: CPU time of the process on one
thread, and with all threads the time that passes. "the same draw through Pillow" applies the very
operations that we drew, image by image, and its result is held against ours. The others draw from
ranges of their own; timm's probability of 1/2 for an operation is set to 1, as all others have it.
Libraries that are not installed are left out.

    python benchmarks/augmentations.py
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

import composable.functional as F

Run = Callable[[], object]


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


# In the order of the numbers in a draw.
PILLOW = [
    lambda i, s: ImageOps.autocontrast(i),
    lambda i, s: ImageOps.equalize(i),
    lambda i, s: ImageOps.posterize(i, int(s)),
    lambda i, s: i.rotate(s, Image.Resampling.BILINEAR),
    lambda i, s: ImageOps.solarize(i, int(s)),
    lambda i, s: affine(i, 1, s, 0, 0, 1, 0),
    lambda i, s: affine(i, 1, 0, 0, s, 1, 0),
    lambda i, s: affine(i, 1, 0, int(s * i.width), 0, 1, 0),
    lambda i, s: affine(i, 1, 0, 0, 0, 1, int(s * i.height)),
    *(
        lambda i, s, enhance=enhance: enhance(i).enhance(s)
        for enhance in (
            ImageEnhance.Color,
            ImageEnhance.Contrast,
            ImageEnhance.Brightness,
            ImageEnhance.Sharpness,
        )
    ),
]


def pictures(images: Tensor) -> list[Image.Image]:
    return [Image.fromarray(i) for i in images.permute(0, 2, 3, 1).contiguous().numpy()]


def tensor(images: list[Image.Image]) -> Tensor:
    return torch.from_numpy(np.stack([np.asarray(i) for i in images])).permute(0, 3, 1, 2)


def chain(image: Image.Image, operations: list[int], strengths: list[float]) -> Image.Image:
    for number, strength in zip(operations, strengths, strict=True):
        if number >= 0:
            image = PILLOW[number](image, strength)
    return image


def randaugment_by_pillow(images: Tensor, draw: F.RandAugmentDraw) -> Tensor:
    drawn = zip(draw.operations.T.tolist(), draw.strengths.T.tolist(), strict=True)
    return tensor([chain(i, *d) for i, d in zip(pictures(images), drawn, strict=True)])


def augmix_by_pillow(images: Tensor, draw: F.AugMixDraw) -> Tensor:
    mixed = []
    for index, image in enumerate(pictures(images)):
        array = np.asarray(image, dtype=np.float32)
        mix = np.zeros_like(array)
        for number, weight in enumerate(draw.chain_weights[:, index].tolist()):
            one = (part[:, number, index].tolist() for part in draw[:2])
            mix += weight * np.asarray(chain(image, *one), dtype=np.float32)
        weight = draw.weight[index].item()
        mixed.append((array + weight * (mix - array) + 0.5).astype(np.uint8))
    return torch.from_numpy(np.stack(mixed)).permute(0, 3, 1, 2)


def declare_operators() -> None:
    """Let torchvision's wheel for CUDA be imported beside a torch for the CPU."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # it lasts as long as the object


def peers(method: str, images: Tensor) -> dict[str, Run]:
    """The other libraries that can be imported."""
    runs: dict[str, Run] = {}
    try:
        from torchvision.transforms import v2
    except RuntimeError:
        declare_operators()
        try:
            from torchvision.transforms import v2
        except Exception:
            v2 = None
    except ImportError:
        v2 = None
    if v2 is not None:
        bilinear = v2.InterpolationMode.BILINEAR
        make = v2.RandAugment if method == "randaugment" else v2.AugMix
        there = make(interpolation=bilinear)
        runs["torchvision, PIL"] = lambda: tensor([there(i) for i in pictures(images)])
        runs["torchvision, tensors"] = lambda: torch.stack([there(i) for i in images])
    try:
        from timm.data import auto_augment as timm
    except Exception:
        timm = None
    if timm is not None:
        options = {"translate_const": images.shape[-1] // 3, "img_mean": (128, 128, 128)}
        if method == "randaugment":
            operations = timm.rand_augment_transform("rand-m9-n2-p1.0", options)
        else:
            operations = timm.augment_and_mix_transform("augmix-m3-w3", options)
        runs["timm, PIL"] = lambda: tensor([operations(i) for i in pictures(images)])
    try:
        from kornia.augmentation import auto
    except Exception:
        auto = None
    if auto is not None and method == "randaugment":
        there_too = auto.RandAugment(n=2, m=9)
        runs["kornia, floats, one draw for the batch"] = lambda: there_too(images / 255)
    return runs


def candidates(method: str, images: Tensor) -> dict[str, Run]:
    draw_of = getattr(F, f"draw_{method}")
    apply, pillow = getattr(F, f"apply_{method}"), globals()[f"{method}_by_pillow"]
    # Both go through the same draws, one after the other.
    draws = [
        draw_of(len(images), generator=torch.Generator().manual_seed(seed)) for seed in range(64)
    ]
    # On average: where a level is off by one, the next operation may turn it into many.
    assert (
        apply(images, draws[0]).int() - pillow(images, draws[0]).int()
    ).abs().double().mean() < 1
    ours, theirs = iter(draws * 4), iter(draws * 4)
    generator = torch.Generator().manual_seed(0)

    def composable() -> Tensor:
        draw_of(len(images), generator=generator)  # its time is ours, its draw is not used
        return apply(images, next(ours))

    same = {"the same draw through Pillow": lambda: pillow(images, next(theirs))}
    return {"composable": composable, **same, **peers(method, images)}


def measure(runs: dict[str, Run], rounds: int, clock: Callable[[], float]) -> None:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(clock() - start)
    for name, measured in times.items():
        ratios = [a / b for a, b in zip(measured, times["composable"], strict=True)]
        print(
            f"  {name:<40} {1e3 * statistics.median(measured):9.2f} ms"
            f" {statistics.median(ratios):7.2f} times",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    all_threads = torch.get_num_threads()
    for threads in sorted({1, all_threads}):
        torch.set_num_threads(threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        for shape in [(128, 3, 32, 32), (32, 3, 224, 224)]:
            coarse = torch.rand(*shape[:2], shape[2] // 4, shape[3] // 4)
            smooth = torch.nn.functional.interpolate(coarse, size=shape[2:], mode="bilinear")
            images = (smooth * 255).to(torch.uint8)
            for method in ("randaugment", "augmix"):
                print(f"{method}, {'x'.join(map(str, shape))}, threads: {threads}")
                measure(candidates(method, images), rounds, clock)


if __name__ == "__main__":
    main()
