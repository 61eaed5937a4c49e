"""Render formulas as MathML in the build: a reader needs no network and no script for them.

The converter is that of docutils, and strict: a formula that it cannot render is a warning that
names the page, and `sphinx-build -W` then stops.
"""

import html
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def render(node: nodes.Element, *, display: bool) -> str:
    """Return the formula of a node as MathML, or as code with a warning."""
    formula = node.astext()
    try:
        # It has one of the two names of low dots.
        return tex2mathml(formula.replace(r"\dots", r"\ldots"), as_block=display)
    except MathError as error:
        message = "the formula %r does not render: %s"
        logger.warning(message, formula, error, location=node, type="mathml")
        return f"<code>{html.escape(formula)}</code>"


def visit_inline(translator: Any, node: nodes.Element) -> None:
    """Write a formula of a sentence."""
    translator.body.append(render(node, display=False))
    raise nodes.SkipNode


def visit_display(translator: Any, node: nodes.Element) -> None:
    """Write a formula on a line of its own; a wide one scrolls."""
    translator.body.append(f'<div class="math">{render(node, display=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
