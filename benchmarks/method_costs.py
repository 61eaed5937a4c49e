"""Measure the cost of each method relative to a training step, for the method cards.

A step is one training step (forward, backward, SGD) of a residual network with 1.2 million
parameters on 64 images of 64 x 64, in float32 on one thread. The candidates of a table run in
turns, and ratios are computed per turn, so that other load on the machine has little effect.

    python benchmarks/method_costs.py                  # all tables, a few minutes
    python benchmarks/method_costs.py mixup blurpool   # only these

The first line of each table is the baseline. A table shows the best CPU time of each candidate, and
the median over the turns of its ratio to the baseline.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, one_hot, pad
from torch.optim.swa_utils import AveragedModel

import composable.functional as F
from composable.optim import RowAdagrad

Candidates = dict[str, Callable[[], object]]


def conv(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    """Build a convolution and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(inputs, outputs, 3, stride), nn.ReLU(), conv(outputs, outputs, 3, 1)
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block."""
        return torch.relu(self.body(x) + self.shortcut(x))


def network() -> nn.Module:
    """Build the residual network of a step: a max-pool and three blocks with strides."""
    return nn.Sequential(
        *(conv(3, 32, 3, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2), Block(128, 256, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)),
    )


def batch() -> tuple[Tensor, Tensor]:
    """Draw the images and labels of a step."""
    return torch.randn(64, 3, 64, 64), torch.randint(10, (64,))


def train_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Build a training step with a learning rate of 0."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def scoring(model: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    """Build a forward pass without gradients."""
    return torch.no_grad()(lambda: model(images))


def take_turns(
    candidates: Candidates, *, rounds: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, list[float]]:
    """Measure the seconds of a call of each candidate, once per round."""
    calls = {}
    for name, candidate in candidates.items():
        for _ in range(3):  # the first calls of some torch functions take longer
            started = clock()
            candidate()
        calls[name] = max(1, int(0.005 / (clock() - started + 1e-9)))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            candidate()  # the candidate before has filled the caches
            started = clock()
            for _ in range(calls[name]):
                candidate()
            times[name].append((clock() - started) / calls[name])
    return times


def mixup() -> list[Candidates]:
    """Compare the mixing, the draw alone, and the losses."""
    images, labels = batch()
    generator = torch.Generator().manual_seed(0)
    order, outputs = torch.randperm(64), torch.randn(64, 10)
    mixed = F.mixup(images, labels, generator=generator)
    return [
        {
            "0.7 * x + 0.3 * x[perm]": lambda: 0.7 * images + 0.3 * images[order],
            "mixup": lambda: F.mixup(images, labels, generator=generator),
            "draw_mixup": lambda: F.draw_mixup(64, generator=generator),
        },
        {
            "cross entropy": lambda: cross_entropy(outputs, labels),
            "mixed.loss of it": lambda: mixed.loss(cross_entropy, outputs),
        },
    ]


def alternating_flip() -> list[Candidates]:
    """Compare with flips by hand, and with the draw alone."""
    images, _ = batch()
    indices = torch.arange(64)
    flipped = F.draw_alternating_flip(indices, epoch=1)
    where = flipped.reshape(-1, 1, 1, 1)
    return [
        {
            "torch.where of the flipped images": lambda: torch.where(
                where, images.flip(-1), images
            ),
            "alternating_flip": lambda: F.alternating_flip(images, indices, epoch=1),
            "draw_alternating_flip": lambda: F.draw_alternating_flip(indices, epoch=1),
        }
    ]


def random_translation() -> list[Candidates]:
    """Compare with a crop of the padded images by advanced indexing, and with the draw alone."""
    images, _ = batch()
    generator = torch.Generator().manual_seed(0)
    shifts = F.draw_random_translation(64, images.shape[2:], generator=generator)
    padded = pad(images, [2] * 4, mode="reflect")
    rows, columns = ((2 + shifts[:, dim, None]) + torch.arange(images.shape[2]) for dim in (0, 1))
    example = torch.arange(64)[:, None, None]
    return [
        {
            "padded[example, :, rows, columns]": lambda: padded[
                example, :, rows[:, :, None], columns[:, None]
            ].permute(0, 3, 1, 2),
            "random_translation": lambda: F.random_translation(images, generator=generator),
            "draw_random_translation": lambda: F.draw_random_translation(
                64, images.shape[2:], generator=generator
            ),
        }
    ]


def cutmix() -> list[Candidates]:
    """Compare with a box pasted by hand, per batch and per example; and the draw."""
    images, labels = batch()
    generator = torch.Generator().manual_seed(0)
    order, box = torch.randperm(64), torch.tensor([[16, 48], [16, 48]])
    one, each = F.CutMixDraw(order, box), F.CutMixDraw(order, box.repeat(64, 1, 1))

    def by_hand() -> Tensor:
        mixed = images.clone()
        mixed[:, :, 16:48, 16:48] = images[order, :, 16:48, 16:48]
        return mixed

    return [
        {
            "a box pasted by hand": by_hand,
            "apply_cutmix": lambda: F.apply_cutmix(images, labels, one),
            "apply_cutmix, a box per example": lambda: F.apply_cutmix(images, labels, each),
            "draw_cutmix": lambda: F.draw_cutmix(64, (64, 64), generator=generator),
        }
    ]


def cutout() -> list[Candidates]:
    """Compare with a hole cut by hand, per batch and per example; and the draw."""
    images, _ = batch()
    generator = torch.Generator().manual_seed(0)
    hole = torch.tensor([[[16, 48], [16, 48]]])
    mask = torch.zeros(64, 1, 64, 64, dtype=torch.bool)
    mask[:, :, 16:48, 16:48] = True

    def by_hand() -> Tensor:
        cut = images.clone()
        cut[:, :, 16:48, 16:48] = 0
        return cut

    return [
        {
            "a hole cut by hand": by_hand,
            "apply_cutout": lambda: F.apply_cutout(images, hole),
            "masked_fill, a hole per example": lambda: images.masked_fill(mask, 0),
            "apply_cutout, a hole per example": lambda: F.apply_cutout(
                images, hole.repeat(64, 1, 1, 1)
            ),
            "draw_cutout": lambda: F.draw_cutout(64, (64, 64), generator=generator),
        }
    ]


def colout() -> list[Candidates]:
    """Compare with two indexing operations; and steps on the smaller images."""
    model, (images, labels) = network(), batch()
    draw = F.draw_colout((64, 64), generator=torch.Generator().manual_seed(0))
    small = F.apply_colout(images, None, draw).inputs
    return [
        {
            "x[:, :, rows][..., columns]": lambda: images[:, :, draw.rows][..., draw.columns],
            "apply_colout": lambda: F.apply_colout(images, None, draw),
            "draw_colout": lambda: F.draw_colout((64, 64)),
        },
        {
            "a step": train_step(model, images, labels),
            "a step after colout": train_step(model, small, labels),
        },
    ]


def resize_batch() -> list[Candidates]:
    """Compare both modes at half the size, and steps on smaller images."""
    model, (images, labels) = network(), batch()

    def small(scale: float, mode: str = "resize") -> Tensor:
        return F.resize_batch(images, scale_factor=scale, mode=mode)

    return [
        {
            "interpolate": lambda: interpolate(images, scale_factor=0.5, mode="bilinear"),
            "resize": lambda: small(0.5),
            "crop": lambda: small(0.5, "crop"),
        },
        {
            "a step": train_step(model, images, labels),
            "a step at half the size": train_step(model, small(0.5), labels),
            "a step at three quarters": train_step(model, small(0.75), labels),
        },
    ]


def set_sequence_length() -> list[Candidates]:
    """Compare cutting three tensors of 32 texts of 512 tokens to 128 with plain slices."""
    ids = torch.randint(1000, (32, 512))
    texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    def cut(**options: bool) -> Callable[[], object]:
        return lambda: F.set_sequence_length(texts, 128, **options)

    return [
        {
            "slices": lambda: {name: tensor[:, :128] for name, tensor in texts.items()},
            "truncated": cut(),
            "with their ends": cut(preserve_end_of_sequence=True),
            "in pieces": cut(truncate=False),
        }
    ]


def smooth_labels() -> list[Candidates]:
    """Compare the targets of 256 examples of 1000 classes, and the loss on them."""
    outputs, labels = torch.randn(256, 1000), torch.randint(1000, (256,))
    return [
        {
            "one_hot(y) * (1 - s) + s / C": lambda: one_hot(labels, 1000) * 0.9 + 0.1 / 1000,
            "smooth_labels": lambda: F.smooth_labels(labels, num_classes=1000),
        },
        {
            "cross entropy": lambda: cross_entropy(outputs, labels),
            "torch's label_smoothing": lambda: cross_entropy(outputs, labels, label_smoothing=0.1),
            "smooth_labels and cross entropy": lambda: cross_entropy(
                outputs, F.smooth_labels(labels, num_classes=1000)
            ),
        },
    ]


def select_using_loss() -> list[Candidates]:
    """Compare scoring a batch, training on half of it, and the selection itself."""
    model, (images, labels) = network(), batch()
    small = interpolate(images, scale_factor=0.5, mode="bilinear")
    losses, generator = torch.rand(64), torch.Generator().manual_seed(0)
    return [
        {
            "a step": train_step(model, images, labels),
            "a step on half of the batch": train_step(model, images[:32], labels[:32]),
            "scoring": scoring(model, images),
            "scoring at half the size": scoring(model, small),
            "select_using_loss": lambda: F.select_using_loss(losses, generator=generator),
        }
    ]


def blurpool() -> list[Candidates]:
    """Compare steps with blurred layers, in both memory formats, and the surgery."""
    model, (images, labels) = network(), batch()
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    images_last = images.to(memory_format=torch.channels_last)
    variants = {
        "blurpool": F.blurpool(model),
        "replace_convs=False": F.blurpool(model, replace_convs=False),
        "blur_first=False": F.blurpool(model, blur_first=False),
    }
    return [
        {
            "a step": train_step(model, images, labels),
            **{name: train_step(blurred, images, labels) for name, blurred in variants.items()},
            "the surgery": lambda: F.blurpool(model),
        },
        {
            "a step in channels-last": train_step(last, images_last, labels),
            "blurpool in channels-last": train_step(F.blurpool(last), images_last, labels),
        },
    ]


def factorize() -> list[Candidates]:
    """Compare steps with factorized convolutions, and of two wide linear layers."""
    model, (images, labels) = network(), batch()
    linear = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    rows, classes = torch.randn(256, 1024), torch.randint(1024, (256,))
    return [
        {
            "a step": train_step(model, images, labels),
            "from 128 channels on": train_step(
                F.factorize(model, min_channels=128), images, labels
            ),
            "the surgery": lambda: F.factorize(model, min_channels=128),
        },
        {
            "a step of two linear layers of 1024": train_step(linear, rows, classes),
            "factorized": train_step(F.factorize(linear), rows, classes),
            "the surgery": lambda: F.factorize(linear),
        },
    ]


def frozen_layers() -> list[Candidates]:
    """Compare steps with frozen layers, and the computation of the layers to freeze."""
    images, labels = batch()

    def step(share: float) -> Callable[[], None]:
        model = network()
        frozen = F.frozen_layers(model, elapsed=1.0, freeze_start=0.0, freeze_level=share)
        for name in frozen.parameters:
            model.get_parameter(name).requires_grad_(False)
        return train_step(model, images, labels)

    model = network()
    return [
        {
            "a step": step(0.0),
            **{f"{share:.0%} of the layers frozen": step(share) for share in (0.25, 0.5, 1.0)},
            "frozen_layers": lambda: F.frozen_layers(model, elapsed=0.75),
        }
    ]


def steps_with(change: Callable[[nn.Module], nn.Module], name: str) -> list[Candidates]:
    """Compare steps of the plain network and of a changed one, and the surgery."""
    model, (images, labels) = network(), batch()
    changed = change(model)
    return [
        {
            "a step": train_step(model, images, labels),
            name: train_step(changed, images, labels),
            "the surgery": lambda: change(model),
        }
    ]


def ghost_batchnorm() -> list[Candidates]:
    """Compare steps with norms over slices of 16."""
    return steps_with(partial(F.ghost_batchnorm, ghost_batch_size=16), "ghost_batchnorm, by 16")


def squeeze_excite() -> list[Candidates]:
    """Compare steps with attention after each convolution of 64 channels or more."""
    return steps_with(partial(F.squeeze_excite, min_channels=64), "squeeze_excite from 64 on")


def weight_standardization() -> list[Candidates]:
    """Compare steps with standardized weights."""
    return steps_with(F.weight_standardization, "weight_standardization")


def whiten_first_layer() -> list[Candidates]:
    """Compare steps with a frozen first layer."""
    sample = torch.randn(1000, 3, 64, 64)
    return steps_with(partial(F.whiten_first_layer, inputs=sample), "whiten_first_layer")


def stochastic_depth() -> list[Candidates]:
    """Compare steps that drop half of the blocks, or the residuals of half of the examples."""
    model, (images, labels) = network(), batch()
    block = F.ResidualBlock(
        Block,
        shortcut=lambda block, x: torch.relu(block.shortcut(x)),
        residual=lambda block: block.body,
    )

    def step(method: str) -> Callable[[], None]:
        options = {"drop_rate": 0.5, "drop_distribution": "uniform", "method": method}
        return train_step(F.stochastic_depth(model, target=block, **options), images, labels)

    return [
        {
            "a step": train_step(model, images, labels),
            "by block, half of them": step("block"),
            "by sample, half of them": step("sample"),
        }
    ]


def gyro_dropout() -> list[Candidates]:
    """Compare a layer of 1024 features, forward and backward, for 512 examples."""
    x = torch.randn(512, 1024, requires_grad=True)
    plain = nn.Dropout()
    gyro = F.gyro_dropout(plain, iters_per_epoch=100, max_epoch=10)

    def both_ways(layer: nn.Module) -> Callable[[], None]:
        return lambda: layer(x).sum().backward()

    return [{"dropout": both_ways(plain), "gyro dropout": both_ways(gyro)}]


def channels_last() -> list[Candidates]:
    """Compare steps in both memory formats."""
    model, (images, labels) = network(), batch()
    last = images.to(memory_format=torch.channels_last)
    return [
        {
            "a step": train_step(model, images, labels),
            "a step in channels-last": train_step(F.channels_last(model), last, labels),
        }
    ]


def randaugment() -> list[Candidates]:
    """Compare augmenting the images of a step; AugMix uses three chains."""
    images, generator = batch()[0].sigmoid(), torch.Generator().manual_seed(0)
    return [
        {
            "randaugment": lambda: F.randaugment(images, generator=generator),
            "augmix": lambda: F.augmix(images, generator=generator),
        }
    ]


def ema() -> list[Candidates]:
    """Compare an update of the average, and building a model with it."""
    model = network()
    current = model.state_dict()
    average = {name: tensor.clone() for name, tensor in current.items()}
    return [
        {
            "s * a + (1 - s) * c, tensor by tensor": lambda: {
                name: 0.99 * tensor + 0.01 * current[name] for name, tensor in average.items()
            },
            "ema": lambda: F.ema(average, current, smoothing=0.99),
            "with_tensors": lambda: F.with_tensors(model, average),
        }
    ]


def swa() -> list[Candidates]:
    """Compare an update of the mean with PyTorch's, and recompute batch norm statistics."""
    model, (images, _) = network(), batch()
    averaged = AveragedModel(model, use_buffers=True)
    current = model.state_dict()
    average = {name: tensor.clone() for name, tensor in current.items()}
    return [
        {
            "AveragedModel.update_parameters": lambda: averaged.update_parameters(model),
            "swa": lambda: F.swa(average, current, 3),
            "recompute statistics on a batch": lambda: F.recompute_batch_norm_statistics(
                model, [images]
            ),
        }
    ]


def sam_perturbation() -> list[Candidates]:
    """Compare the perturbation, and a training step with it."""
    model, (images, labels) = network(), batch()
    train_step(model, images, labels)()
    params = dict(model.named_parameters())
    grads = {name: param.grad.clone() for name, param in params.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def by_hand() -> dict[str, Tensor]:
        norm = torch.stack([grad.norm() for grad in grads.values()]).norm()
        return {n: p.detach() + 0.05 / (norm + 1e-12) * grads[n] for n, p in params.items()}

    def both_passes() -> None:
        cross_entropy(model(images), labels).backward()
        found = {name: param.grad for name, param in params.items()}
        own = {name: param.detach().clone() for name, param in params.items()}
        copy_into(params, F.sam_perturbation(params, found))
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        copy_into(params, own)
        optimizer.step()
        optimizer.zero_grad()

    return [
        {
            "w + rho * g / norm, tensor by tensor": by_hand,
            "sam_perturbation": lambda: F.sam_perturbation(params, grads),
        },
        {"a step": train_step(model, images, labels), "a step with two passes": both_passes},
    ]


@torch.no_grad()
def copy_into(params: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Copy values into parameters."""
    for name, param in params.items():
        param.copy_(values[name])


def clip_gradients() -> list[Candidates]:
    """Compare the three methods, two of them with PyTorch's in-place functions."""
    model, (images, labels) = network(), batch()
    train_step(model, images, labels)()
    params = list(model.parameters())
    grads = [param.grad.clone() for param in params]

    def clip(method: str) -> Callable[[], object]:
        return lambda: F.clip_gradients(grads, threshold=0.1, method=method, params=params)

    return [
        {
            "clip_grad_norm_": lambda: nn.utils.clip_grad_norm_(params, 0.1),
            "norm": clip("norm"),
            "adaptive": clip("adaptive"),
        },
        {
            "clip_grad_value_": lambda: nn.utils.clip_grad_value_(params, 0.1),
            "value": clip("value"),
        },
    ]


def gpt2(**options: int) -> nn.Module:
    """Build a GPT-2 with two layers, 8 heads and a width of 256, without dropout."""
    import transformers  # an optional dependency of two tables

    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(
        vocab_size=1000,
        n_embd=256,
        n_head=8,
        **rates,
        **{"n_layer": 2, "n_positions": 512, **options},
    )
    config.bos_token_id = config.eos_token_id = 0
    return transformers.GPT2LMHeadModel(config)


def text_step(model: nn.Module, ids: Tensor) -> Callable[[], None]:
    """Build a training step on texts with a learning rate of 0."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()

    return step


def checkpoint_activations() -> list[Candidates]:
    """Compare steps of a GPT-2 with 12 layers on 4 texts of 512 tokens, and what they keep."""
    model, ids = gpt2(n_layer=12), torch.randint(1000, (4, 512))
    products = ["aten.addmm.default"]
    changed = {
        "a step of GPT-2": model,
        "checkpoint_activations": F.checkpoint_activations(model),
        "every=2": F.checkpoint_activations(model, every=2),
        "policy=['aten.addmm.default']": F.checkpoint_activations(model, policy=products),
    }
    return [
        {f"{name}: {kept(one, ids):.0f} MB": text_step(one, ids) for name, one in changed.items()}
    ]


def kept(model: nn.Module, ids: Tensor) -> float:
    """Return the megabytes that a forward pass allocates, and keeps for the backward pass."""
    with torch.profiler.profile(profile_memory=True) as profile:
        loss = model(ids, labels=ids, use_cache=False).loss
    megabytes = sum(one.self_cpu_memory_usage for one in profile.key_averages()) / 1e6
    loss.backward()
    return megabytes


def alibi() -> list[Candidates]:
    """Compare steps of a GPT-2 on 4 texts of 512 tokens, and on pieces of them."""
    model, ids = gpt2(), torch.randint(1000, (4, 512))
    converted = F.alibi(model, max_sequence_length=512)
    pieces = F.set_sequence_length({"input_ids": ids}, 128, truncate=False)["input_ids"]
    return [
        {
            "a step of GPT-2": text_step(model, ids),
            "with alibi": text_step(converted, ids),
            "on pieces of 128 tokens": text_step(model, pieces),
            "with alibi on these pieces": text_step(converted, pieces),
            "the surgery": lambda: F.alibi(model, max_sequence_length=512),
        },
        {
            "GPT-2 without gradients": scoring(model, ids),
            "with alibi": scoring(converted, ids),
        },
    ]


def rotary() -> list[Candidates]:
    """Compare steps of a GPT-2 on 4 texts of 512 tokens, and the rotation of queries alone."""
    model, ids = gpt2(), torch.randint(1000, (4, 512))
    converted, queries = F.rotary(model), torch.randn(4, 8, 512, 32)
    tables = F.rotary_tables(torch.arange(512), 32)
    return [
        {
            "a step of GPT-2": text_step(model, ids),
            "with rotary": text_step(converted, ids),
            "the surgery": lambda: F.rotary(model),
        },
        {
            "rotary_embedding": lambda: F.rotary_embedding(queries),
            "rotate_pairs": lambda: F.rotate_pairs(queries, *tables),
            "rotate_pairs, interleaved": lambda: F.rotate_pairs(queries, *tables, interleaved=True),
        },
    ]


def ngram_embeddings() -> list[Candidates]:
    """Compare steps of a GPT-2 on 4 texts of 512 tokens, with tables of 8 and 64 MB."""
    model, ids = gpt2(), torch.randint(1000, (4, 512))
    table = torch.zeros(62500, 256)
    return [
        {
            "a step of GPT-2": text_step(model, ids),
            "with 7,812 rows": text_step(F.ngram_embeddings(model, megabytes=8), ids),
            "with 62,500 rows": text_step(F.ngram_embeddings(model), ids),
            "the surgery": lambda: F.ngram_embeddings(model),
        },
        {
            "hash_ngrams": lambda: F.hash_ngrams(ids, rows=62500),
            "embed_ngrams": lambda: F.embed_ngrams(ids, table),
        },
        {
            f"{rows:,} rows, {'sparse' if sparse else 'dense'}": table_step(ids, rows, sparse)
            for sparse in (True, False)
            for rows in (2**14, 2**18)
        },
    ]


def table_step(ids: Tensor, rows: int, sparse: bool) -> Callable[[], None]:
    """Return a step of a token embedding with n-grams alone, clipped and by `RowAdagrad`."""
    model: Any = F.ngram_embeddings(
        nn.Sequential(nn.Embedding(1000, 96)), rows=rows, megabytes=200, sparse=sparse
    )
    table = model[0].ngrams.weight
    optimizer = RowAdagrad([table])

    def step() -> None:
        model.zero_grad()
        model(ids).square().sum().backward()
        table.grad = F.clip_gradients(table.grad, threshold=1.0)
        optimizer.step()

    return step


def attention_methods() -> list[Candidates]:
    """Compare steps of a GPT-2 on 4 texts of 512 tokens, with changes of its attention."""
    model, ids = gpt2(), torch.randint(1000, (4, 512))
    offset, long = F.partial_key_offset(model, every=1), gpt2(n_positions=2048)
    queries = torch.randn(1, 8, 4096, 32, requires_grad=True)

    class Bare(nn.Module):
        heads = 8

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    def attend(block: nn.Module) -> Callable[[], None]:
        return lambda: block(queries).sum().backward()

    F.register_attention(Bare, heads="heads")
    return [
        {
            "a step of GPT-2": text_step(model, ids),
            "with qk_norm": text_step(F.qk_norm(model), ids),
            "attention_output_gate": text_step(F.attention_output_gate(model), ids),
            "exclusive_self_attention": text_step(F.exclusive_self_attention(model), ids),
            "the same, learned": text_step(F.exclusive_self_attention(model, learned=True), ids),
            "partial_key_offset of all blocks": text_step(offset, ids),
            "the surgery": lambda: F.qk_norm(model),
        },
        {
            "a step on 2048 tokens": text_step(long, ids.view(1, -1)),
            "with a window of 512": text_step(F.sliding_window(long, window=512), ids.view(1, -1)),
            "of 128": text_step(F.sliding_window(long, window=128), ids.view(1, -1)),
        },
        {
            "attention of 8 heads to 4096 tokens": attend(Bare()),
            "with a window of 1024": attend(F.sliding_window(Bare(), window=1024)),
            "of 256": attend(F.sliding_window(Bare(), window=256)),
        },
    ]


def residual_stream() -> list[Candidates]:
    """Compare steps of a GPT-2 on 4 texts of 512 tokens, with changes of its residual stream."""
    model, ids = gpt2(), torch.randint(1000, (4, 512))
    return [
        {
            "a step of GPT-2": text_step(model, ids),
            "squared_relu": text_step(F.squared_relu(model), ids),
            "skip_connections": text_step(F.skip_connections(model), ids),
            "the same, dynamic": text_step(F.skip_connections(model, dynamic=True), ids),
            "value_residual": text_step(F.value_residual(model), ids),
            "value_embeddings": text_step(F.value_embeddings(model), ids),
            "smear": text_step(F.smear(model), ids),
            "split_head": text_step(F.split_head(model), ids),
            "the same model again": text_step(model, ids),
        }
    ]


def linear_cross_entropy() -> list[Candidates]:
    """Compare the losses of 2048 hidden states of width 128 and 4096 classes, with gradients."""
    hidden = torch.randn(2048, 128, requires_grad=True)
    head = torch.randn(4096, 128, requires_grad=True)
    targets = torch.randint(4096, (2048,))

    def with_gradients(loss: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(loss(), (hidden, head))

    def chunked(**options: float) -> Callable[[], Tensor]:
        return partial(F.linear_cross_entropy, hidden, head, targets, **options)

    candidates = {
        "cross_entropy of all logits": lambda: cross_entropy(hidden @ head.mT, targets),
        "linear_cross_entropy": chunked(),
        "in chunks of 256": chunked(chunk_size=256),
        "in chunks of 64": chunked(chunk_size=64),
        "with label smoothing": chunked(label_smoothing=0.1),
        "with soft-capped logits": chunked(softcap=15.0),
    }
    if hasattr(nn, "LinearCrossEntropyOptions"):
        theirs = partial(torch.nn.functional.linear_cross_entropy, hidden, head, targets)
        candidates["that of torch, in chunks"] = partial(
            theirs, options=nn.LinearCrossEntropyOptions()
        )
    return [{name: with_gradients(loss) for name, loss in candidates.items()}]


def of_logits() -> list[Candidates]:
    """Compare losses of the logits of 2048 tokens and 4096 classes, with gradients."""
    logits = torch.randn(2048, 4096, requires_grad=True)
    targets, prefixes = torch.randint(4096, (2048,)), torch.randint(4096, (4096,))

    def with_gradients(loss: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(loss(), logits)

    candidates = {
        "cross_entropy": lambda: cross_entropy(logits, targets),
        "of soft-capped logits": lambda: cross_entropy(F.softcap_logits(logits), targets),
        "prefix_token_loss": lambda: F.prefix_token_loss(logits, targets, prefixes),
        "cross_entropy twice": lambda: (
            cross_entropy(logits, targets) + cross_entropy(logits, prefixes[targets])
        ),
    }
    return [{name: with_gradients(loss) for name, loss in candidates.items()}]


def cached_gradients() -> list[Candidates]:
    """Compare the gradients of a batch with those in eight parts, plainly and cached."""
    model, (images, labels) = network(), batch()
    params = dict(model.named_parameters())
    parts, targets = images.split(8), labels.split(8)

    def in_parts() -> None:
        for part, classes in zip(parts, targets, strict=True):
            torch.autograd.grad(cross_entropy(model(part), classes), params.values())

    return [
        {
            "gradients of a batch": lambda: torch.autograd.grad(
                cross_entropy(model(images), labels), params.values()
            ),
            "of eight parts, each with a loss": in_parts,
            "cached_gradients of eight parts": lambda: F.cached_gradients(
                model, parts, lambda outputs: cross_entropy(outputs, labels), params
            ),
        }
    ]


def pack_documents() -> list[Candidates]:
    """Compare steps of a GPT-2 on 16 documents of 32 to 512 tokens, padded and packed."""
    model, generator = gpt2(), torch.Generator().manual_seed(0)
    lengths = (32 * 16 ** torch.rand(16, generator=generator)).int().tolist()  # log-uniform
    documents = [torch.randint(1, 1000, (length,), generator=generator) for length in lengths]
    padded = nn.utils.rnn.pad_sequence(documents, batch_first=True)
    packed = F.pack_documents(documents, 512)
    mask = F.document_mask(packed["document_ids"])
    print(f"{sum(lengths)} tokens in {padded.numel()} padded, {packed['input_ids'].numel()} packed")
    texts = {
        "padded": {
            "input_ids": padded,
            "labels": padded.masked_fill(padded == 0, -100),
            "attention_mask": (padded > 0).long(),
        },
        "packed": {
            "input_ids": packed["input_ids"],
            "labels": packed["labels"],
            "attention_mask": mask,
            "position_ids": packed["position_ids"],
        },
    }

    def step(batch: dict[str, Tensor]) -> Callable[[], None]:
        return lambda: model(**batch, use_cache=False).loss.backward()

    return [
        {
            "a step on the documents, padded": step(texts["padded"]),
            "packed": step(texts["packed"]),
            "pack_documents": lambda: F.pack_documents(documents, 512),
            "document_mask": lambda: F.document_mask(packed["document_ids"]),
        }
    ]


def gated_linear_units() -> list[Candidates]:
    """Compare steps of a GPT-2 on 4 texts of 512 tokens, with equal width and equal weights."""
    ids = torch.randint(1000, (4, 512))
    model, narrow = gpt2(), gpt2(n_inner=683)
    return [
        {
            "a step of GPT-2": text_step(model, ids),
            "gated": text_step(F.gated_linear_units(model), ids),
            "gated, two thirds as wide": text_step(F.gated_linear_units(narrow), ids),
            "the surgery": lambda: F.gated_linear_units(model),
        }
    ]


METHODS = {
    method.__name__: method
    for method in (
        *(
            mixup,
            alternating_flip,
            random_translation,
            cutmix,
            cutout,
            colout,
            resize_batch,
            set_sequence_length,
        ),
        *(smooth_labels, select_using_loss, blurpool, factorize, frozen_layers, ema, swa),
        *(sam_perturbation, clip_gradients),
        *(
            ghost_batchnorm,
            squeeze_excite,
            weight_standardization,
            whiten_first_layer,
            stochastic_depth,
        ),
        *(gyro_dropout, channels_last, randaugment),
        checkpoint_activations,
        *(alibi, rotary, attention_methods, ngram_embeddings, gated_linear_units),
        residual_stream,
        *(linear_cross_entropy, of_logits, pack_documents),
        cached_gradients,
    )
}


def print_table(title: str, times: dict[str, list[float]], step: float) -> None:
    """Print milliseconds, the ratio to the first line, and the percentage of a step."""
    first = next(iter(times.values()))
    print(f"\n{title:<40} {'ms':>9} {'times':>7} {'of a step':>10}")
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, first, strict=True))
        share = min(seconds) / step
        print(f"  {name:<38} {1e3 * min(seconds):9.3f} {ratio:7.2f} {share:10.2%}", flush=True)


def main() -> None:
    """Measure the given methods, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", choices=[*METHODS, []], help="all by default")
    parser.add_argument("--rounds", type=int, default=10, help="number of turns per candidate")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    step = min(take_turns({"a step": train_step(network(), *batch())}, rounds=10)["a step"])
    print(f"A step: {1e3 * step:.0f} ms (PyTorch {torch.__version__}, CPU, one thread)")
    for name in arguments.methods or METHODS:
        for candidates in METHODS[name]():
            print_table(name, take_turns(candidates, rounds=arguments.rounds), step)


if __name__ == "__main__":
    main()
