"""A page as a parser sees it."""

from html.parser import HTMLParser

VOID = ("img", "meta", "wbr")


class Page(HTMLParser):
    """Its elements, in order; what is wrong with the tags; its text by section."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.faults = [], [], []
        self.section, self._texts = "", {}
        self.feed(text)
        self.close()
        self.faults += [f"{tag} is not closed" for tag in self.open]
        self.sections = {section: "".join(texts) for section, texts in self._texts.items()}

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.faults.append(f"{tag} has an attribute twice")
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")
        if tag == "section":
            self.section = ""

    def handle_data(self, data):
        self._texts.setdefault(self.section, []).append(data)
