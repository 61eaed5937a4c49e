"""Adapters that give a module a loss, and metrics for its evaluation.

The `Trainer` needs none of them: it takes a module with `loss_fn`, or a model of Transformers as it
is. An adapter packs a module, its loss and its metrics into one model, by the protocol
`loss(outputs, batch)`, `validate(batch) -> (outputs, targets)` and `metrics(train)`.
"""

from typing import TYPE_CHECKING

from composable._lazy import export_lazily

if TYPE_CHECKING:
    from composable.models.auxiliary import AuxiliaryLoss as AuxiliaryLoss
    from composable.models.classifier import Classifier as Classifier
    from composable.models.detector import Detector as Detector
    from composable.models.ensemble import Ensemble as Ensemble
    from composable.models.huggingface import HuggingFaceModel as HuggingFaceModel
    from composable.models.liger import with_liger_kernels as with_liger_kernels
    from composable.models.lora import lora_config as lora_config
else:
    export_lazily(__name__)
