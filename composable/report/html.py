"""Build HTML: every text is escaped unless it was built here."""

from html import escape
from typing import Any

__all__ = ["HTML", "element", "join", "scrolling_table", "visible"]


class HTML(str):
    """Text that is HTML already."""


def visible(text: str) -> str:
    r"""Replace characters that cannot be seen, such as controls and changes of direction.

    Example:
        >>> from composable.report.html import visible
        >>> visible("a\x1b[2Jb") == "a\ufffd[2Jb"
        True
    """
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def element(tag: str, /, *children: Any, **attributes: Any) -> HTML:
    """Build an element.

    Args:
        tag: Its name.
        children: Text, which is escaped, and `HTML`.
        attributes: Its attributes: `data_run` is written as `data-run`, and `class_` as `class`.
            Those that are None or False are omitted.

    Example:
        >>> from composable.report.html import element
        >>> element("td", "a < b", class_="name", hidden=True)
        '<td class="name" hidden>a &lt; b</td>'
    """
    written = "".join(
        f" {_name(name)}" if value is True else f' {_name(name)}="{_text(value)}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    closing = "" if tag in ("img", "meta", "input") else f"</{tag}>"
    return HTML(f"<{tag}{written}>{join(*children)}{closing}")


def join(*parts: Any) -> HTML:
    """Join text, which is escaped, and `HTML`."""
    return HTML("".join(part if isinstance(part, HTML) else _text(part) for part in parts))


def scrolling_table(header: list[Any], rows: list[HTML], **attributes: Any) -> HTML:
    """Build a table that scrolls sideways on a narrow screen."""
    head = element("thead", element("tr", *(element("th", cell) for cell in header)))
    body = element("tbody", *rows)
    return element("div", element("table", head, body, **attributes), class_="scroll")


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _text(value: Any) -> str:
    return escape(visible(str(value)))
