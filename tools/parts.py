"""What each part of `speedrun_gpt` gives, beside the figures of others, for the page of methods."""

from collections.abc import Iterator

from tools.evidence import STUDIES, describe_verdict

__all__ = ["REPORTED", "part_lines"]

_SMALL = "no figure of its own"

REPORTED: dict[str, str] = {
    "without NGramEmbeddings": "104.1 to 98.4 s (n = 6); no gain in time with 25 layers",
    "without Alibi": "11 % faster than sinusoidal positions, 1.3 billion parameters",
    "without Muon": "31.4 to 24.9 min",
    "without clipping": "–",
    "n-grams of two tokens only": "better than trigrams",
    "Muon: heads apart": "loss 3.2800 to 3.2788 (n = 8); neutral in nanochat",
    "SeqLengthWarmup": "3.7 times less time, GPT-2 of 1.5 billion parameters, tuned rates",
    "QKNorm": f"22.3 to 15.2 min with two other changes; {_SMALL}",
    "SquaredReLUs": f"22.3 to 15.2 min with two other changes; {_SMALL}",
    "InitializeProjections": "20 steps, 1.2 s",
    "AttentionOutputGate": "about 50 of 1,750 steps (n = 14); no gain in nanochat",
    "ExclusiveSelfAttention": "80.40 to 79.85 s (n = 10); re-tests disagree",
    "PartialKeyOffset": "131.2 to 128.9 s (n = 11), with others; 1.05 to 1.20 times in marin",
    "WindowWarmup": "5.03 to 4.66 min, 64 thousand tokens of context",
    "ValueEmbeddings": "4.66 to 4.41 min",
    "Smear": "about 5 steps",
    "SoftcapLogits": f"10.8 to 8.2 min with other changes; {_SMALL}",
    "PrefixTokens": "79.27 to 78.48 s (n = 10)",
    "EMA of the end": "76.34 to 75.66 s (n = 16), of head and embedding; none in nanochat",
    "Muon: equalize_rows": "about 0.001 bits per byte",
    "Muon: update_floor": "loss 0.0024 (n = 4)",
    "Muon: slow_momentum": "3,250 to 3,210 steps (n = 8)",
    "Muon: neuron_beta2": "a gain; little or none in re-tests",
    "Muon: soap_beta2": "3,225 to 3,150 steps (n = 4)",
    "Muon: Polar Express": "a gain; within the noise in nanochat",
    "Muon: momentum 0.95": "–",
    "cautious weight decay": "lower losses; confirmed by nanochat",
    "EMA-Nesterov": "3,325 to 3,125 steps (n = 20)",
    "momentum warm-up": _SMALL,
    "cosine": "–",
    "warm-up, stable, decay": "–",
    "decay by the square root": "–",
}
"""What the authors of each part saw; without a size, on GPT-2 of 124 million parameters."""


def part_lines() -> list[str]:
    """Render the table of the parts."""
    return ["| arm | here | elsewhere |", "|---|---|---|", *_rows()]


def _rows() -> Iterator[str]:
    study = next(one for one in STUDIES if one.name == "language-parts")
    for arm, elsewhere in REPORTED.items():
        yield f"| {arm} | {describe_verdict(study.analysis[arm])} | {elsewhere} |"
