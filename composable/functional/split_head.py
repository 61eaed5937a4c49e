"""Embedding and head that are tied at first and split later in training.

Tying: Press and Wolf, "Using the Output Embedding to Improve Language Models", EACL 2017,
https://arxiv.org/abs/1608.05859; the split: records of modded-nanogpt since 2026,
https://github.com/KellerJordan/modded-nanogpt
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from composable._support.checks import check_module_name, check_tensors, checked
from composable._support.embeddings import output_embeddings
from composable._support.pretrained import guard_saving
from composable._support.surgery import check_uncompiled, copy_on_write, report_nothing

from ._token_embedding import find_token_embedding

__all__ = ["split_head", "tie_gradients"]


@checked(target=check_module_name)
def split_head(
    model: nn.Module, *, target: str | None = None, head: str | None = None
) -> nn.Module:
    """Give the output layer a separate weight, a copy of the token embedding's.

    A tied weight is split; a head with a separate weight gets the values of the embedding. So both
    are equal at first, and stay equal while `tie_gradients` gives both the same gradient and their
    optimizers treat them alike.

    The configuration of a model of Hugging Face gets `tie_word_embeddings=False`, so that it is
    saved and loaded with both. In models such as BERT, which then don't tie the bias of the head
    either, the bias that is not read becomes a frozen copy. If an encoder and a decoder share the
    embedding, `save_pretrained` raises. The keys of the state dict don't change.

    Args:
        model: Any module. It is not modified. The result shares all other parameters.
        target: The name of the token embedding in `model.named_modules()`, if it is not found.
        head: The name of the output layer, if it is not found: by default the result of
            `get_output_embeddings()`, or else the layer that is tied to the embedding, or the only
            `nn.Linear` with a weight of the same shape.

    Returns:
        The new model; `model` itself if its head was split by this function, or nothing was found.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: There are several embeddings or heads, a name denotes none, the weights have
            different shapes, or the model is compiled or wrapped for distributed training.

    Warns:
        NoEffectWarning: The model has no token embedding or no head of the same shape.

    Example:
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
        >>> model[1].weight = model[0].weight
        >>> new = split_head(model)
        >>> new[1].weight is new[0].weight, torch.equal(new[1].weight, new[0].weight)
        (False, True)
    """
    at = find_token_embedding(model, target)
    output = None if at is None else _find_head(model, at, head)
    if at is None or output is None:
        sought = "a token embedding, and a head with a weight of the same shape"
        report_nothing("split_head", sought, "Pass the names of both: target=..., head=...")
        return model
    if find_split(model) == (f"{at}.weight", f"{output}.weight"):
        return model
    check_uncompiled(model, [at, output])
    new: Any = copy_on_write(model)
    embedding, layer = new.get_submodule(at), new.get_submodule(output)
    if "weight" not in layer._parameters:
        raise ValueError(
            f"{output} must have its weight as a parameter; split the head before an adapter or a "
            "parametrization is added, as by peft.get_peft_model."
        )
    trains = layer.weight.requires_grad
    layer.weight = nn.Parameter(embedding.weight.detach().clone(), requires_grad=trains)
    embedding.split_part, layer.split_part = "embedding", "head"
    for module in new.modules():
        if getattr(getattr(module, "config", None), "tie_word_embeddings", False):
            module.config.tie_word_embeddings = False
        if tied := getattr(module, "all_tied_weights_keys", None):
            module.all_tied_weights_keys = module.get_expanded_tied_weights_keys()
            _untie(module, {k: v for k, v in tied.items() if k not in module.all_tied_weights_keys})
    return new  # type: ignore[no-any-return]


def _untie(model: Any, tied: Mapping[str, str]) -> None:
    """Give the source of parameters, which a model does not read, separate values.

    Args:
        model: A model that is loaded without these ties. If two of the parameters are still one, as
            the embeddings of an encoder and a decoder, it can't be saved for that.
        tied: The source of each parameter, by name.
    """
    parameters = {name: model.get_parameter(name) for name in tied}
    for name, source in tied.items():
        path, _, attribute = source.rpartition(".")
        if model.get_parameter(source) is parameters[name]:
            copied = nn.Parameter(parameters[name].detach().clone(), requires_grad=False)
            setattr(model.get_submodule(path), attribute, copied)
    if len(set(map(id, parameters.values()))) < len(tied):
        guard_saving(model, list(tied))


def tie_gradients(grads: Mapping[str, Tensor], *, names: Sequence[str]) -> dict[str, Tensor]:
    """Replace the gradients of parameters by their sum, as if one parameter were at all places.

    Args:
        grads: Gradients by name. They are not modified.
        names: Names of the parameters. Those without a gradient get the sum of the others too.

    Returns:
        All gradients by name. If none of `names` has one, they stay the same.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `names` are fewer than two, or the shapes differ.

    Example:
        >>> grads = {"a": torch.ones(2), "b": 2 * torch.ones(2), "c": torch.zeros(3)}
        >>> tied = tie_gradients(grads, names=["a", "b"])
        >>> tied["a"], tied["b"], tied["c"] is grads["c"]
        (tensor([3., 3.]), tensor([3., 3.]), True)
    """
    check_tensors("grads", grads)
    if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) for one in names):
        raise TypeError(f"names={names!r} must be a list of names of parameters.")
    if len(set(names)) < 2:
        raise ValueError(f"names={names!r} must be two names of parameters or more.")
    found = [grads[name] for name in names if name in grads]
    if not found:
        return dict(grads)
    if len({tensor.shape for tensor in found}) > 1:
        shapes = {name: tuple(grads[name].shape) for name in names if name in grads}
        raise ValueError(f"names must be of parameters of one shape, not {shapes}.")
    total = found[0]
    for tensor in found[1:]:
        total = total + tensor
    return {**grads, **dict.fromkeys(names, total)}


def find_split(model: nn.Module) -> tuple[str, str] | None:
    """Return the names of the weights of the embedding and the head that `split_head` has split."""
    parts = {getattr(module, "split_part", None): name for name, module in model.named_modules()}
    if not {"embedding", "head"} <= parts.keys():
        return None
    return f"{parts['embedding']}.weight", f"{parts['head']}.weight"


def _find_head(model: nn.Module, at: str, head: Any) -> str | None:
    """Return the name of the output layer."""
    named: dict[str, Any] = dict(model.named_modules())
    weight = named[at].weight
    if head is not None:
        if not isinstance(head, str):
            raise TypeError(f"head={head!r} must be the name of a module, or None.")
        found = getattr(named.get(head), "weight", None)
        if head == at or getattr(found, "shape", None) != weight.shape:
            raise ValueError(
                f"head={head!r} must be the name of a layer other than {at!r} with a weight of the "
                f"shape {tuple(weight.shape)}."
            )
        return head
    own = output_embeddings(model)
    others = {
        name: value
        for name, value in named.items()
        if value is not named[at]
        and getattr(getattr(value, "weight", None), "shape", None) == weight.shape
    }
    found = (
        [name for name, other in others.items() if other is own],
        [name for name, other in others.items() if other.weight is weight],
        [name for name, other in others.items() if isinstance(other, nn.Linear)],
    )
    names = next(filter(None, found), [])
    if len(names) > 1:
        raise ValueError(
            f"head=None must be the name of the output layer, one of {', '.join(names)}; pass "
            f"head={names[-1]!r}, for example."
        )
    return names[0] if names else None
