"""The checks of a class that uses a mixin of another trainer."""


def check_mixin(kind: type, mixin: type, base: type, method: str) -> None:
    """Raise a TypeError unless the methods of a mixin replace those of a trainer, and no others.

    Args:
        kind: A class with the mixin among its bases.
        mixin: The mixin.
        base: The class of the other library whose methods the mixin replaces.
        method: The method in which the mixin computes the loss.
    """
    order = kind.__mro__
    if base not in order:
        return
    if order.index(mixin) > order.index(base):
        raise TypeError(
            f"{kind.__name__} must have {mixin.__name__} before {base.__name__} among its bases, "
            f"because otherwise the methods of {base.__name__} override those of the mixin: "
            f"class {kind.__name__}({mixin.__name__}, ...)."
        )
    owners = [one for one in order if method in vars(one) and one not in base.__mro__]
    if owners[0] is mixin and len(owners) > 1:
        raise TypeError(
            f"{kind.__name__}.{method} must be one method, but {mixin.__name__}.{method} hides "
            f"{owners[1].__name__}.{method}; define {method} in {kind.__name__}, with the calls "
            f"t.start_batch(batch) and t.loss(outputs), or write `{method} = "
            f"{mixin.__name__}.{method}` there to use the mixin's."
        )
