"""Pages of HTML, as a browser reads them."""

from html.parser import HTMLParser

VOID = {"meta", "img", "input"}


class Page(HTMLParser):
    """The elements of a page, which must be closed in order, and their texts by tag or by id."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append((tag, dict(attributes).get("id")))

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop()[0] == tag

    def handle_data(self, data):
        for key in {tag for tag, _ in self.open} | {name for _, name in self.open if name}:
            self.texts[key] = self.texts.get(key, "") + data

    @property
    def tags(self):
        """The tags of the elements, in order."""
        return [tag for tag, _ in self.elements]

    @property
    def attributes(self):
        """The names and values of the attributes of all elements."""
        return [pair for _, attributes in self.elements for pair in attributes.items()]
