"""Replace modules of a model by a rule: the surgery on which all others are built."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence, Set
from typing import Any

import attrs
from torch import nn

from composable._support.checks import check_flag, check_is_callable, checked, kind_of
from composable._support.pretrained import guard_saving
from composable._support.references import References
from composable._support.surgery import (
    check_uncompiled,
    copy_on_write,
    log_replaced,
    report_nothing,
)
from composable._support.warn import NoEffectWarning, warn_user

from ._reclass import is_adapter

__all__ = ["Replacement", "replace_modules"]

Rule = Callable[[str, nn.Module], nn.Module]

# These read `child.weight` and never call the child: a replacement would have no effect.
READS_WEIGHTS: dict[type[nn.Module], set[str]] = {
    nn.MultiheadAttention: {"out_proj"},
    nn.TransformerEncoderLayer: {"self_attn", "linear1", "linear2", "norm1", "norm2"},
}


@attrs.frozen(eq=False)
class Replacement:
    """The result of `replace_modules`.

    Args:
        model: The new model; the given one if nothing was replaced.
        names: The names of the replaced modules in the given model, one for each place.
        without_effect: What may have no effect, in a sentence for each layer: a module whose parent
            reads its weights without a call, and a tied parameter of which not all were replaced.
    """

    model: nn.Module
    names: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()


@checked(rule=check_is_callable, training_only=check_flag)
def replace_modules(model: nn.Module, rule: Rule, *, training_only: bool = False) -> Replacement:
    """Replace modules by a rule, children before their parents.

    The new model shares all parameters that the replacements keep. Attributes, closures and hooks
    that refer to a replaced module refer to its replacement. `save_pretrained` of a changed model
    of Hugging Face raises, because `from_pretrained` would build the original layers.

    Args:
        model: Any module. It is not modified, and can be replaced itself.
        rule: A function of the name and of a module of a private copy. It returns a replacement,
            which may contain or reuse the old module, or the module itself to keep it. It is
            called once for a module at several places, with the first of its names.
        training_only: Whether the replacements compute what the old modules did in evaluation, so
            that a model of Hugging Face can be saved and loaded without them.

    Returns:
        The new model, the names of the replaced modules, and what may have no effect.

    Raises:
        TypeError: An argument is of the wrong type, or the rule did not return a module.
        ValueError: The model is wrapped for distributed training, or a module to replace is
            compiled.

    Warns:
        NoEffectWarning: A replacement may be bypassed: the parent reads its weights without a
            call, or only one of several tied parameters was replaced.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        >>> result = replace_modules(
        ...     model, lambda name, module: nn.GELU() if isinstance(module, nn.ReLU) else module
        ... )
        >>> result.names
        ('1',)
        >>> result.model[1], model[1]
        (GELU(approximate='none'), ReLU())
        >>> result.model[0].weight is model[0].weight
        True
    """
    root = copy_on_write(model)
    copies = dict(root.named_modules(remove_duplicate=False))
    done: dict[int, tuple[nn.Module, nn.Module]] = {}  # keeps old modules alive: ids stay unique
    new = _replace("", root, rule, done)
    replaced = {key: after for key, (before, after) in done.items() if after is not before}
    if not replaced:
        return Replacement(model)
    names = [name for name, module in copies.items() if id(module) in replaced]
    check_uncompiled(model, names)
    successors = {id(after) for after in replaced.values()}
    _check_unadapted(new, successors)
    references = References(replaced)
    for module in new.modules():
        if id(module) not in successors:  # a replacement may contain the old module
            references.redirect_in(module)
        if isinstance(module, nn.TransformerEncoder) and not successors.isdisjoint(
            map(id, module.layers.modules())
        ):
            module.use_nested_tensor = False  # which only unchanged layers take
    problems = [*_find_bypassed(model, names), *_find_untied(model, new)]
    for problem in problems:
        warn_user(problem, NoEffectWarning)
    if not training_only:
        guard_saving(new, names)
    log_replaced([pair for pair in done.values() if pair[0] is not pair[1]])
    return Replacement(new, tuple(names), tuple(problems))


def replace_or_report(
    model: nn.Module,
    rule: Rule,
    done: type | tuple[type, ...],
    method: str,
    sought: str,
    advice: str = "",
    *,
    training_only: bool = False,
) -> nn.Module:
    """Replace modules; warn if there are none, nor any that are replaced already: of `done`."""
    result = replace_modules(model, rule, training_only=training_only)
    if not result.names and not any(isinstance(module, done) for module in model.modules()):
        report_nothing(method, sought, advice)
    return result.model


def replace_named(
    model: nn.Module, names: Container[str], replaced: Callable[..., nn.Module], **options: Any
) -> nn.Module:
    """Replace each module that has one of these names by `replaced(name, module)`, in a copy."""

    def rule(name: str, module: nn.Module) -> nn.Module:
        return replaced(name, module) if name in names else module

    return replace_modules(model, rule, **options).model


def _replace(
    name: str, module: nn.Module, rule: Rule, done: dict[int, tuple[nn.Module, nn.Module]]
) -> nn.Module:
    if id(module) not in done:
        done[id(module)] = module, module
        for key, child in list(module._modules.items()):
            if child is not None:
                module._modules[key] = _replace(f"{name}.{key}".lstrip("."), child, rule, done)
        done[id(module)] = module, _ruled(name, module, rule)
    return done[id(module)][1]


def _check_unadapted(model: nn.Module, successors: Set[int]) -> None:
    """Raise a ValueError for a new layer with an adapter, which merging changes or takes away."""
    for name, module in model.named_modules():
        parts = (module, getattr(module, "base_layer", None))
        changed = any(id(part) in successors or hasattr(part, "changed_outputs") for part in parts)
        if changed and parts[1] is not None and is_adapter(module):
            raise ValueError(
                f"{name} has an adapter, and merged, the model would not compute the same; change "
                "the model before peft.get_peft_model, and omit the layer from target_modules."
            )


def _ruled(name: str, module: nn.Module, rule: Rule) -> nn.Module:
    new = rule(name, module)
    if not isinstance(new, nn.Module):
        raise TypeError(
            f"rule must return a module, or the module that it is called with to keep it; for "
            f"{name or 'model'} it returned {kind_of(new)}."
        )
    return new


def _find_bypassed(model: nn.Module, names: Sequence[str]) -> Iterator[str]:
    """Find replacements under a parent that does not call them."""
    parents = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        path, _, child = name.rpartition(".")
        parent = parents[path]
        for kind, children in READS_WEIGHTS.items():
            if name and path not in names and isinstance(parent, kind) and child in children:
                yield (
                    f"{name} was replaced, but {kind.__name__} can read its weights without "
                    "calling it, so the replacement may have no effect; skip it, or replace the "
                    "whole parent."
                )


def _find_untied(model: nn.Module, new: nn.Module) -> Iterator[str]:
    """Find tied parameters of which some, but not all, were replaced."""
    before, after = Counter(_parameter_ids(model)), Counter(_parameter_ids(new))
    for name, parameter in model.named_parameters():
        if 0 < after[id(parameter)] < before[id(parameter)]:
            yield (
                f"{name} was shared by {before[id(parameter)]} modules, and not all of them share "
                "it after the replacement; replace all of them, or tie them in the new model."
            )


def _parameter_ids(model: nn.Module) -> list[int]:
    return [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
