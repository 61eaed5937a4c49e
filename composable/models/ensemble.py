"""Ensembles of models, for evaluation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, Subset

from composable._support.checks import check_count, check_module, kind_of
from composable._support.foreach import compute_dtype
from composable._support.targets import (
    IGNORE_INDEX,
    check_class_dim,
    check_several_classes,
)
from composable.batches.batch import to_device
from composable.batches.model_call import (
    batch_spec_of,
    call_for_logits,
    call_with_input,
    is_transformers_model,
)
from composable.core.evaluation_mode import evaluation_mode
from composable.data.digest import digest_of
from composable.functional import average_probabilities, mixture_weights
from composable.losses.positions import class_logits, default_class_dim, labels_of_logits


class Ensemble(nn.Module):
    """Predict with the average probabilities of several models, in evaluation mode.

    It returns the logarithms of the averages, which losses and metrics take like the logits of one
    model: see `composable.functional.average_probabilities`. A call costs as much as one of each
    model, so report its results apart from those of one model.

    Args:
        members: The models, such as the snapshots of a run. They are called with the arguments of
            the ensemble, and return logits, or outputs of Transformers. A call restores their
            modes.
        weights: Weights of the models, 0 or more, such as those of `mixture_weights`. They are
            divided by their sum. By default all equal.
        class_dim: Dimension of the classes in the logits: 1, or -1 for the last. By default the
            last for tokens of models of Transformers, and 1 otherwise.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There are no models, or the weights are not one number of 0 or more for each.

    Example:
        >>> from composable.models import Ensemble
        >>> ensemble = Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)], weights=[0.75, 0.25])
        >>> ensemble(torch.randn(2, 4)).exp().sum(1).allclose(torch.ones(2))
        True
    """

    weights: Tensor

    def __init__(
        self,
        members: Sequence[nn.Module] | nn.ModuleList,
        *,
        weights: Iterable[float] | Tensor | None = None,
        class_dim: int | None = None,
    ) -> None:
        super().__init__()
        models = _checked_models("members", members)
        self.members = nn.ModuleList(models)
        self.register_buffer("weights", _shares(weights, len(models)))
        if class_dim is not None:
            check_class_dim("class_dim", class_dim)
        self.class_dim = class_dim

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call each model in evaluation mode, and average the probabilities.

        Raises:
            TypeError: A model returns no logits.
            ValueError: The models return logits of different shapes, or of a single class.
        """
        gradients = torch.is_grad_enabled()
        with evaluation_mode(self.members), torch.set_grad_enabled(gradients):
            found = [class_logits(one(*args, **kwargs), "Ensemble") for one in self.members]
        logits = [one.to(compute_dtype(one.dtype)) for one in found]
        dim = self._class_dim_of(logits[0])
        return average_probabilities(logits, weights=self.weights, class_dim=dim)

    def _class_dim_of(self, logits: Tensor) -> int:
        """Return the dimension of the classes in the logits of the members."""
        given = self.class_dim
        return default_class_dim(self.members[0], logits) if given is None else given


def fit_mixture(
    models: Sequence[nn.Module] | nn.ModuleList,
    held_out: "Dataset[Any]",
    *,
    trained_on: "Dataset[Any]",
    top: int | None = None,
    batch_size: int = 64,
    class_dim: int | None = None,
) -> Ensemble:
    """Fit the weights of an ensemble to a part of the training data that was held out.

    No model may have been trained on `held_out`: it would seem better than it is, and get the
    weight of the others. So `trained_on` is compared with it: by their indices if both are subsets
    of one dataset, such as those of `torch.utils.data.random_split`, and by the contents of their
    examples otherwise. Don't use the data of the final evaluation, which fitted weights make seem
    too easy.

    Args:
        models: The models, such as the snapshots of a run, on one device.
        held_out: Examples: pairs of inputs and class indices, or dictionaries for models of
            Transformers, with the logits of which the labels are compared. Labels of -100 are
            skipped.
        trained_on: What the models were trained on.
        top: Number of models to keep. By default all.
        batch_size: Number of examples in a batch, at least 1.
        class_dim: As for `Ensemble`.

    Returns:
        The ensemble of the models that are kept, by falling weight.

    Raises:
        TypeError: An argument is of the wrong type, or the labels are not class indices.
        ValueError: An example of `held_out` is in `trained_on`, the examples are random, none has a
            label, the models have different outputs, or one predicts NaN.

    Example:
        >>> from torch.utils.data import TensorDataset, random_split
        >>> from composable.models import fit_mixture
        >>> data = TensorDataset(torch.randn(20, 4), torch.randint(3, (20,)))
        >>> train, held_out = random_split(data, [16, 4])
        >>> snapshots = [nn.Linear(4, 3), nn.Linear(4, 3)]  # which were trained on train
        >>> ensemble = fit_mixture(snapshots, held_out, trained_on=train)
        >>> ensemble.weights.sum()
        tensor(1.)
    """
    members = _checked_models("models", models)
    check_count("batch_size", batch_size, 1)
    _refuse_overlap(held_out, trained_on)
    loader = DataLoader(held_out, batch_size=batch_size)
    ensemble = Ensemble(members, class_dim=class_dim)
    with evaluation_mode(ensemble):
        found = torch.cat([_log_likelihoods(ensemble, batch) for batch in loader], 1)
    _refuse_diverged(found)
    weights = mixture_weights(found, top=top).cpu()
    order = weights.argsort(descending=True, stable=True).tolist()[:top]
    return Ensemble([members[i] for i in order], weights=weights[order], class_dim=class_dim)


def _log_likelihoods(ensemble: Ensemble, batch: Any) -> Tensor:
    """Return the log-likelihood of each label of a batch under each model."""
    found, shapes = [], set()
    for model in ensemble.members:
        spec = batch_spec_of(model)
        device = next((one.device for one in model.parameters()), torch.device("cpu"))
        moved = to_device(batch, device)
        call = call_for_logits if is_transformers_model(model) else call_with_input
        logits = class_logits(call(model, moved, spec), "fit_mixture")
        shapes.add(tuple(logits.shape))
        if len(shapes) > 1:
            raise ValueError(
                f"the models return logits of the shapes {sorted(shapes)}; the models of a mixture "
                "must have the same classes."
            )
        labels = labels_of_logits(model, spec.targets(moved), logits)
        precise = logits.to(compute_dtype(logits.dtype)).movedim(ensemble._class_dim_of(logits), 1)
        _check_labels(labels, precise)
        losses = cross_entropy(precise, labels, reduction="none")
        found.append(-losses[labels != IGNORE_INDEX])
    return torch.stack(found)


def _check_labels(labels: Any, logits: Tensor) -> None:
    """Raise an error unless there is a class index for each position of `[batch, classes, ...]`."""
    check_several_classes("the logits of a model", logits, 1)
    shape = logits.select(1, 0).shape
    indices = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex())
    if not indices or labels.shape != shape:
        given = f"{labels.dtype}, {tuple(labels.shape)}" if isinstance(labels, Tensor) else labels
        raise TypeError(
            f"the labels of held_out must be class indices of shape {tuple(shape)}, one for each "
            f"position of the logits, not {given}; a mixture predicts one class of several."
        )


def _refuse_diverged(log_likelihoods: Tensor) -> None:
    """Raise a ValueError if a mixture of the models has no likelihood of each label."""
    if not log_likelihoods.numel():
        raise ValueError(
            f"held_out has no labels but {IGNORE_INDEX}, which are skipped; hold out examples with "
            "labels."
        )
    wrong = [i for i, one in enumerate(log_likelihoods) if one.isnan().any()]
    if wrong:
        raise ValueError(
            f"the models {wrong}, counted from 0, predict NaN for held_out, as models do that have "
            "diverged: omit them."
        )
    if not log_likelihoods.amax(0).isfinite().all():
        raise ValueError(
            "held_out has labels to which no model gives a probability above 0, with logits of "
            "-inf: omit these examples, or add a model that predicts their labels."
        )


def _checked_models(name: str, models: Any) -> list[nn.Module]:
    if not isinstance(models, (Sequence, nn.ModuleList)) or isinstance(models, (str, bytes)):
        raise TypeError(f"{name} must be a list of modules, not {kind_of(models)}.")
    listed = list(models)
    if not listed:
        raise ValueError(f"{name}=[] must have at least one model.")
    for i, model in enumerate(listed):
        check_module(f"{name}[{i}]", model)
    return listed


def _shares(weights: Any, count: int) -> Tensor:
    """Return weights with a sum of 1."""
    if weights is None:
        return torch.full((count,), 1 / count)
    try:
        given = torch.as_tensor(weights if isinstance(weights, Tensor) else list(weights)).float()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"weights={weights!r} must be a list of numbers.") from error
    if given.shape != (count,) or not (given >= 0).all() or not 0 < given.sum() < float("inf"):
        raise ValueError(
            f"weights={weights!r} must be one number for each of the {count} models, 0 or more, "
            "and not all 0."
        )
    return given.detach() / given.sum()


# --- data that was trained on ---


def _refuse_overlap(held_out: Any, trained_on: Any) -> None:
    """Raise a ValueError if an example of one dataset is in the other."""
    for name, data in (("held_out", held_out), ("trained_on", trained_on)):
        indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        if not indexed or isinstance(data, (Tensor, Mapping, str, bytes)):
            raise TypeError(
                f"{name} must be a dataset with a length and indices, not {kind_of(data)}; pass "
                "loader.dataset for a DataLoader."
            )
        if not len(data):
            raise ValueError(f"{name} is empty; hold out some of the training data.")
    held_base, held = _indices(held_out)
    trained_base, trained = _indices(trained_on)
    if not isinstance(held_out[0], (tuple, list, Mapping)):
        raise TypeError(
            f"held_out must have pairs of inputs and targets, or dictionaries, not "
            f"{kind_of(held_out[0])}."
        )
    if held_base is trained_base:
        known = set(trained)
        shared = [place for place, index in enumerate(held) if index in known]
    else:
        seen = set(_digests(trained_on, "trained_on"))
        shared = [i for i, one in enumerate(_digests(held_out, "held_out")) if one in seen]
    if shared:
        raise ValueError(
            f"{len(shared)} of the {len(held)} examples of held_out are in trained_on, such as "
            f"held_out[{shared[0]}]; fit a mixture to examples that no model was trained on: "
            "divide the training data by torch.utils.data.random_split before training."
        )


def _indices(data: Any) -> tuple[Any, list[int]]:
    """Return the dataset inside of all subsets, and the indices there."""
    indices = list(range(len(data)))
    while isinstance(data, Subset):
        indices = [int(data.indices[i]) for i in indices]
        data = data.dataset
    return data, indices


def _digests(data: Any, name: str) -> Iterator[str]:
    """Yield the digest of each example."""
    if any(digest_of(data[i]) != digest_of(data[i]) for i in range(min(len(data), 8))):
        raise ValueError(
            f"the examples of {name} are random and cannot be compared; pass two subsets of "
            "one dataset, such as those of torch.utils.data.random_split."
        )
    for i in range(len(data)):
        yield digest_of(data[i])
