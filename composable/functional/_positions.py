"""Surgery of position embeddings, which `alibi` and `rotary` share."""

import copy
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs
from torch import nn

from composable._support.checks import kind_of
from composable._support.registry import Registry, check_class, class_name
from composable._support.surgery import report_nothing

from ._reclass import other_setting
from .layers.attention import ChangedAttention
from .layers.attention_bias import NoPositions
from .replace_modules import replace_modules

Setting = TypeVar("Setting")
Conversion = TypeVar("Conversion", bound=Callable[..., nn.Module])


@attrs.frozen(eq=False)
class PositionSurgery(Generic[Setting]):
    """Replaces the position embeddings and the attention of a model, by a registry of classes.

    Args:
        method: The name of the method.
        setting: The argument of a conversion, `convert(module, setting)`.
        attribute: The attribute in which a converted module keeps it.
        setting_of: Returns the setting with which a module is converted, or None.
        registry: The conversions.
        other: The name of the method that replaces positions in another way.
        converted_by_other: Returns whether a module is converted by it.
        advice: How to register a class.
    """

    method: str
    setting: str
    attribute: str
    setting_of: Callable[[nn.Module], Setting | None]
    registry: Registry[Callable[[Any, Setting], nn.Module]]
    other: str
    converted_by_other: Callable[[nn.Module], bool]
    advice: str

    def __call__(self, model: nn.Module, setting: Setting) -> nn.Module:
        """Return the converted model; `model` itself if there is nothing to convert."""
        converted = self._converted(model, setting)

        def rule(name: str, module: nn.Module) -> nn.Module:
            conversion = self.registry.find(type(module))
            inside = any(name == one or name.startswith(f"{one}.") for one in converted)
            if conversion is None or inside or getattr(module, "is_cross_attention", False):
                return module
            new = conversion(copy.copy(module), setting)
            if not isinstance(new, nn.Module):
                raise TypeError(
                    f"the conversion of {class_name(type(module))} must return a module, not "
                    f"{kind_of(new)}."
                )
            if isinstance(module, ChangedAttention) and not isinstance(new, ChangedAttention):
                raise ValueError(
                    f"the conversion of {class_name(type(module))} must keep the class of "
                    f"{name or 'model'}, whose attention is changed already; call {self.method} "
                    "first."
                )
            setattr(new, self.attribute, setting)
            for change in getattr(new, "attention_changes", {}).values():
                change.attach(name, new)
            return new

        result = replace_modules(model, rule)
        if result.names:
            self._check_attention(result.model)
        elif not converted:
            sought = f"position embeddings and attention of the classes {self.registry.names}"
            report_nothing(self.method, sought, self.advice)
        return result.model

    def register(self, kinds: tuple[Any, ...]) -> Callable[[Conversion], Conversion]:
        """Return a decorator that registers a conversion for classes, or their full names."""
        for kind in kinds:
            check_class("kinds", kind)

        def register(conversion: Conversion) -> Conversion:
            if not callable(conversion):
                raise TypeError(
                    f"conversion={conversion!r} must be a function of a module and {self.setting}."
                )
            for kind in kinds:
                self.registry.add(kind, conversion)
            return conversion

        return register

    def _converted(self, model: nn.Module, setting: Setting) -> set[str]:
        """Return the names of the modules that are converted already, with this setting.

        Raises:
            ValueError: One is converted with another setting, or by the other method.
        """
        names = set()
        for name, module in model.named_modules():
            if self.converted_by_other(module):
                raise ValueError(
                    f"{name or 'model'} must not be converted by {self.other}, which replaces "
                    "positions too; convert the original model, with one of the two."
                )
            earlier = self.setting_of(module)
            if earlier is None:
                continue
            if earlier != setting:
                raise other_setting(f"{self.setting}={setting}", earlier, name)
            names.add(name)
        return names

    def _check_attention(self, model: nn.Module) -> None:
        """Raise a ValueError for a model that has neither position embeddings nor a replacement."""
        modules = list(model.modules())
        without = [m for m in modules if any(isinstance(c, NoPositions) for c in m.children())]
        replaced = [m for m in modules if self.setting_of(m) is not None and m not in without]
        if without and not replaced:
            raise ValueError(
                f"model has the position embeddings of {type(without[0]).__name__}, but no "
                f"attention of the known classes {self.registry.names}; add others with "
                f"register_{self.method}."
            )
