"""GPT-2 to a loss of 3.28 on FineWeb: the task of modded-nanogpt, as a composition of methods.

On one GPU or more, `composable launch examples/nanogpt_speedrun.py FOLDER` reads the files that
modded-nanogpt downloads. On a CPU, `--size tiny` fits the files of PyTorch's source that `python
examples/small_gpt.py --vocabulary 1024 --write-tokens FOLDER` writes. The methods are those that
several runs of the records support (docs/methods). **The size of the task has never been run.**
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from composable import Trainer, algorithms, optim
from composable.callbacks import Printer, ThresholdStopper
from composable.data import TokenFiles

MODELS = {
    "small": {"vocab_size": 50304, "n_positions": 1024, "n_layer": 12, "n_head": 6, "n_embd": 768},
    "tiny": {"vocab_size": 1024, "n_positions": 64, "n_layer": 4, "n_head": 2, "n_embd": 64},
}
PLAIN = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
PLAIN |= {"bos_token_id": 0, "eos_token_id": 0}
# Rows of a batch and of a microbatch, tokens of validation, and steps.
RUNS = {"small": (512, 32, 10 * 2**20, 3000), "tiny": (16, 16, 2**12, 200)}
RATES = {"embeddings": 4e-3, "head": 4e-3, "tables": 2e-2, "norms_and_biases": 1.5e-2}


def methods(vocabulary: int, steps: int) -> list[Any]:
    """Return the methods, in any order."""
    return [
        algorithms.Rotary(fraction=0.5),
        algorithms.PartialKeyOffset(fraction=0.5),
        algorithms.QKNorm(gain=1.35),
        algorithms.ExclusiveSelfAttention(),
        algorithms.ValueEmbeddings(layers=[0, 1, -2, -1]),
        algorithms.SquaredReLUs(),
        algorithms.InitializeProjections(attention="mimetic"),
        algorithms.SkipConnections("embedding"),
        algorithms.NGramEmbeddings(n=2, rows=5 * vocabulary),
        algorithms.SplitHead("0.67dur"),
        algorithms.SoftcapLogits(cap=15.0),
        algorithms.EMA(half_life=f"{max(1, steps // 36)}ba", ema_start="0.8dur", blend=0.6),
    ]


def optimizer(steps: int, parameters: Any) -> torch.optim.Optimizer:
    """Return Muon, and AdamW with a rate for each role of the other parameters."""
    adamw: Any = {"adamw_betas": (0.8, 0.95), "adamw_eps": 1e-10, "adamw_weight_decay": 0.0}
    muon = partial(optim.Muon, lr=0.02, weight_decay=0.05, **adamw)
    roles = {role: {"lr": rate} for role, rate in RATES.items()}
    by_role = optim.by_role(roles, muon, stacked={"*.c_attn.weight": 3})  # queries, keys, values
    cautious = optim.with_cautious_weight_decay(by_role(parameters))
    return optim.with_ema_nesterov(cautious, start=steps // 6, end=3 * steps // 4)


def build(folder: Path, size: str, steps: int | None = None, **options: Any) -> Trainer:
    """Return a Trainer on the files of a folder, which are read as one stream."""
    config, (rows, microbatch, tokens, most) = GPT2Config(**MODELS[size], **PLAIN), RUNS[size]
    steps, length = steps or most, config.n_positions
    files = {part: sorted(folder.glob(f"*_{part}_*.bin")) for part in ("train", "val")}
    validation = TokenFiles(files["val"], length, rows=tokens // length)
    torch.manual_seed(17)
    return Trainer(
        GPT2LMHeadModel(config),
        input_key=0,
        target_key=1,
        loss_fn=lambda logits, ids: cross_entropy(logits.flatten(0, 1).float(), ids.flatten()),
        train_dataloader=DataLoader(TokenFiles(files["train"], length), rows, drop_last=True),
        eval_dataloader=DataLoader(validation, microbatch),
        microbatch_size=microbatch,
        optimizers=partial(optimizer, steps),
        schedulers=optim.warmup_stable_decay("0.5dur", shape="linear"),
        algorithms=methods(config.vocab_size, steps),
        callbacks=[ThresholdStopper("loss", 3.28), Printer()],
        max_duration=f"{steps}ba",
        eval_interval=f"{max(1, steps // 24)}ba",
        seed=17,
        progress_bar=False,
        **options,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="with files *_train_*.bin and *_val_*.bin")
    parser.add_argument("--size", choices=MODELS, default="small")
    parser.add_argument("--steps", type=int, help="the number of steps of the whole schedule")
    parser.add_argument("--save-folder", type=Path, help="of checkpoints, from which it resumes")
    given = vars(parser.parse_args())
    fast: Any = {"precision": "amp_bf16", "compile": True} if torch.cuda.is_available() else {}
    saves: Any = {"save_interval": "250ba", "autoresume": True} if given["save_folder"] else {}
    time = build(**given, **fast, **saves).fit().timestamp
    print(f"{time.batch} steps in {time.total_wct:.0f} seconds of training")
