"""Sphinx configuration; the pages are plain Markdown, and their examples are tests.

The tutorials are notebooks. `make docs` builds them without outputs; `make site` executes them.
"""

import gc
import importlib
import inspect
import re
import sys
from importlib import metadata
from pathlib import Path

from docutils import nodes

# Pages are large trees, which live long: collections took a seventh of the time of a build.
gc.set_threshold(100_000, 20, 100)

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/composable/composable"
sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "composable"
author = "The composable contributors"
copyright = "2026, The composable contributors"
release = metadata.version("composable")

extensions = [
    "mathml",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"composable {release}"
html_static_path = ["_static"]
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
# After the scripts of the page of results, which it changes.
html_js_files = [("search.js", {"defer": "defer"})]
html_copy_source = False
pygments_dark_style = "github-dark"
html_math_renderer = "mathml"
html_theme_options = {
    "source_repository": f"{REPOSITORY}/",
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": ["edit"],
    "light_css_variables": {
        "color-brand-primary": "#2f5fd0",  # that of the reports
        "color-brand-content": "#2f5fd0",
        "color-brand-visited": "#2f5fd0",
    },
    "dark_css_variables": {
        "color-brand-primary": "#85a9ff",
        "color-brand-content": "#85a9ff",
        "color-brand-visited": "#85a9ff",
    },
}

# `make docs` checks the pages and not their frame: the navigation of furo, which every page has
# whole, takes a fifth of the time of a build.
if tags.has("plain"):  # noqa: F821
    html_theme, html_theme_options = "basic", {}

# What is copied has neither prompts nor outputs.
copybutton_prompt_text = r">>> |\.\.\. ?|\$ "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "off"
nb_execution_in_temp = True
nb_execution_timeout = 3600  # seconds for one cell, also on a busy machine
nb_execution_raise_on_error = True
nb_merge_streams = True

# Show types in signatures only; the list of arguments describes them.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 88
# Every page has the whole navigation, so an entry for each object doubles the time of a build.
toc_object_entries = False

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


def linkcode_resolve(domain, info):
    """Return the address of the source of an object, None if it has none."""
    try:
        found = importlib.import_module(info["module"])
        for name in info["fullname"].split("."):
            found = getattr(found, name)
        found = inspect.unwrap(found.fget if isinstance(found, property) else found)
        path = Path(inspect.getsourcefile(found)).relative_to(ROOT)
        lines, first = inspect.getsourcelines(found)
    except (AttributeError, ImportError, OSError, TypeError, ValueError):
        return None  # a constant, or an object of another package
    return f"{REPOSITORY}/blob/main/{path.as_posix()}#L{first}-L{first + len(lines) - 1}"


def _trim_examples(app, doctree):
    """Remove the empty line that doctest wants at the end of an example."""
    for block in doctree.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip()
        block[:] = [nodes.Text(block.rawsource)]


def setup(app):
    app.connect("doctree-read", _trim_examples)
    # After napoleon, which runs at 500.
    app.connect("autodoc-process-docstring", _equations, priority=600)
    app.connect("autodoc-skip-member", _skip_field)
