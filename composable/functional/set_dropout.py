"""Set the rates of the dropouts of a model.

Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, "Dropout: A Simple Way to Prevent
Neural Networks from Overfitting", JMLR 2014, https://jmlr.org/papers/v15/srivastava14a.html
"""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from composable._support.checks import checked, within
from composable._support.surgery import check_unwrapped, copy_on_write, report_nothing

_RATES = tuple(f"{part}dropout" for part in ("", "attention_", "activation_", "hidden_"))
"""The attributes with the rates of modules that drop without a layer, by a function."""
ADVICE = "Add nn.Dropout layers to the model, or drop whole layers by stochastic_depth."


@checked(p=within(0, 1, ends="[)"))
def set_dropout(model: nn.Module, *, p: float = 0.1) -> nn.Module:
    """Set the rates of all dropouts of a model, those with a rate of 0 included.

    These are the dropout layers of PyTorch, and all modules with a number as their attribute
    `dropout`, `attention_dropout`, `activation_dropout` or `hidden_dropout`, which are
    `nn.MultiheadAttention`, recurrent networks of several layers, and modules of Transformers, such
    as Llama's and BART's. The keys of the state dict and the results in evaluation don't change.

    Args:
        model: Any module. It is not modified. The result shares its parameters.
        p: Probability that an element is dropped, in [0, 1).

    Returns:
        The new model; `model` itself if it has these rates already.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: `p` is out of range, or the model is wrapped for distributed training.

    Warns:
        NoEffectWarning: The model has no dropout.

    Example:
        >>> set_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)), p=0.1)[1]
        Dropout(p=0.1, inplace=False)
    """
    check_unwrapped(model)
    rates = [getattr(module, name) for module, name in _dropouts(model)]
    if not rates:
        report_nothing("set_dropout", "dropout layers, and attention with a rate", ADVICE)
    if all(rate == p for rate in rates):
        return model
    new = copy_on_write(model)
    for module, name in _dropouts(new):
        setattr(module, name, p)
    return new


def _dropouts(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the modules that drop elements, each with the name of its rate."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            yield module, "p"
        elif not isinstance(module, nn.RNNBase) or module.num_layers > 1:  # between its layers
            yield from ((module, name) for name in _RATES if _is_rate(vars(module).get(name)))


def _is_rate(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
