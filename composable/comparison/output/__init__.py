"""The forms of a result: table, plot, Markdown, notebook and page."""
