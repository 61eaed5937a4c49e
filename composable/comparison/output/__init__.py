"""The forms of a result: text, Markdown, plot, notebook and page."""
