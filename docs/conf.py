"""Sphinx configuration; the pages are plain Markdown, and their examples are tests.

The tutorials are notebooks. `make docs` builds them without outputs; `make site` executes them.
"""

import re
from importlib import metadata

project = "composable"
author = "The composable contributors"
copyright = "2026, The composable contributors"
release = metadata.version("composable")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"composable {release}"

myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "off"
nb_execution_in_temp = True
nb_execution_timeout = 600  # seconds for one cell, also on a busy machine
nb_execution_raise_on_error = True
nb_merge_streams = True

# Show types in signatures only; the list of arguments describes them.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 88

# `name` in a docstring becomes a link if the name exists.
default_role = "py:obj"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Source", "References")]


def _equations(app, what, name, obj, options, lines):
    """Convert the equations of docstrings, written as in Markdown: $x$ and $$x$$."""
    text = "\n".join(lines)
    text = re.sub(r"^( *)\$\$(.+?)\$\$", _display, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<![\\$`\w])\$([^$`]+)\$", r":math:`\1`", text)
    lines[:] = text.split("\n")


def _display(match):
    indent, equation = match.groups()
    return f"{indent}.. math:: {' '.join(equation.split())}\n"


def _skip_field(app, what, name, obj, skip, options):
    """Skip the fields of named tuples, whose docstrings only give their indices."""
    return True if (obj.__doc__ or "").startswith("Alias for field number") else None


def setup(app):
    # After napoleon, which runs at 500.
    app.connect("autodoc-process-docstring", _equations, priority=600)
    app.connect("autodoc-skip-member", _skip_field)
