"""The order in which the algorithms of the library run, whatever the order of the list."""

import random

import pytest

from composable import Event
from composable.plan.ordering import topological_sort
from tests.support.algorithm_cases import ALGORITHMS

ORDER = [  # one line per stage
    *("ProxyFilter", "SelectiveBackprop"),
    *("Alibi", "FixRes", "ProgressiveResizing", "SeqLengthWarmup"),
    *("AlternatingFlip", "AugMix", "ColOut", "CutOut", "PairedAugment", "RandAugment"),
    *("RandomTranslation", "TTA"),
    *("SnapshotDistillation", "CutMix", "MixUp", "PrefixTokens"),
    "LabelSmoothing",
    # They come before the surgeries that would replace their layers.
    *("AttentionOutputGate", "Dropout", "ExclusiveSelfAttention", "GatedLinearUnits"),
    *("GhostBatchNorm", "GyroDropout", "InitializeConvolutions", "InitializeProjections"),
    *("NGramEmbeddings", "PartialKeyOffset", "QKNorm", "Rotary", "SkipConnections", "Smear"),
    *("SoftcapLogits", "SplitHead", "SquaredReLUs", "StochasticDepth", "ValueEmbeddings"),
    *(
        "ValueResidual",
        "WhitenedFirstLayer",
        "Factorize",
        "BlurPool",
        "SqueezeExcite",
        "WeightStandardization",
    ),
    "WindowWarmup",
    "ChannelsLast",
    *("LowPrecisionGroupNorm", "LowPrecisionLayerNorm"),
    *("GradientClipping", "LayerFreezing", "SAM"),
    *("EMA", "SWA"),
    *("ActivationCheckpointing", "NoOpModel", "WholeLoss"),
]


@pytest.mark.parametrize("seed", range(5))
def test_algorithms_run_in_the_order_of_their_stages_and_names(seed):
    listed = random.Random(seed).sample([case.example for case in ALGORITHMS], len(ALGORITHMS))

    assert [algorithm.name for algorithm in topological_sort(listed)] == ORDER


def test_batch_is_augmented_then_mixed_and_weights_are_averaged_after_the_step():
    at = {case.name: case.example.events for case in ALGORITHMS}

    assert Event.AFTER_DATALOADER in at["RandAugment"]
    assert Event.BEFORE_TRAIN_BATCH in at["MixUp"]
    assert Event.BEFORE_OPTIMIZER_STEP in at["GradientClipping"]
    assert Event.BATCH_END in at["EMA"]
