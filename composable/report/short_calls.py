"""Calls with few arguments: those by which two configurations differ."""

import ast
from collections.abc import Sequence

__all__ = ["short_calls"]


def short_calls(calls: Sequence[str]) -> list[str]:
    """Shorten the calls of one function to the arguments that say something.

    Arguments that are None or False are omitted, and those that are equal in all of several
    calls, as long as one remains.

    Args:
        calls: Expressions of Python; others are returned as they are.

    Example:
        >>> from composable.report.short_calls import short_calls
        >>> short_calls(
        ...     ["MixUp(alpha=0.2, per_sample=False)", "MixUp(alpha=0.4, per_sample=False)"]
        ... )
        ['MixUp(alpha=0.2)', 'MixUp(alpha=0.4)']
        >>> short_calls(["EMA(half_life=Time('20ba'), smoothing=None, ema_start=Time('0dur'))", ""])
        ["EMA(half_life='20ba', ema_start='0dur')", '']
    """
    parsed = [_parse(call) for call in calls]
    given = [call for call in parsed if call is not None]
    common = set.intersection(*map(_arguments, given)) if len(given) > 1 else set()
    return [
        text if call is None else _shorten(call, common)
        for text, call in zip(calls, parsed, strict=True)
    ]


def _parse(text: str) -> ast.Call | None:
    try:
        parsed = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return parsed if isinstance(parsed, ast.Call) else None


def _arguments(call: ast.Call) -> set[tuple[str | None, str]]:
    return {(one.arg, ast.unparse(one.value)) for one in call.keywords}


def _shorten(call: ast.Call, common: set[tuple[str | None, str]]) -> str:
    kept = [one for one in call.keywords if ast.unparse(one.value) not in ("None", "False")]
    differing = [one for one in kept if (one.arg, ast.unparse(one.value)) not in common]
    call.keywords = differing or kept[:1]
    return ast.unparse(_Times().visit(call))


class _Times(ast.NodeTransformer):
    """Replaces `Time('1ep')` by `'1ep'`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "Time" and len(node.args) == 1:
            return node.args[0]
        return node
