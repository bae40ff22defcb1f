"""HTML from elements: whatever texts users bring, they stay texts."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.report.html.chart import embedded_json
from layoutopt.optimizer.report.html.markup import Markup, Table, bullets, element, facts, joined, table, text

HOSTILE = "<script>alert('1')</script> & \"quotes\""


class Reader(HTMLParser):
    """Collects tags, attributes and texts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(markup: str) -> Reader:
    """Parse markup as a browser would."""
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_texts_stay_texts(content: str) -> None:
    """A child that is no markup comes out as written, in an element and in an attribute."""
    found = read(element("p", content, title=content))
    assert found.tags == ["p"]
    assert "".join(found.texts) == content
    assert found.attributes == [("title", content)]


@given(st.text())
def test_json_never_leaves_its_script(content: str) -> None:
    """Embedded JSON holds no character that could end the script element, and reads back equal."""
    written = embedded_json({"name": content})
    assert "<" not in written
    assert "&" not in written
    assert json.loads(written) == {"name": content}


def test_attributes() -> None:
    """Names and values follow the rules: hyphens, no trailing underscore, short numbers, flags."""
    made = element("rect", class_="a", stroke_width=0.1 + 0.2, hidden=True, title=None, lang=False)
    assert made == '<rect class="a" stroke-width="0.3" hidden></rect>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_markup_is_not_escaped_twice() -> None:
    """Markup passes through, text around it does not."""
    inner = element("b", HOSTILE)
    assert text(inner) is inner
    assert read(joined([inner, HOSTILE])).texts == [HOSTILE, HOSTILE]
    assert isinstance(joined([]), Markup)


def test_tables_lists_and_facts_hold_their_texts() -> None:
    """Cells, items, names and values are escaped; empty values are left out."""
    made = table(Table(columns=["name", "n"], rows=[[HOSTILE, "1"]], left=(0,)))
    assert read(made).texts == ["name", "n", HOSTILE, "1"]
    assert "words" in made
    assert "number" in made
    assert read(facts([("a", HOSTILE), ("gone", "")])).texts == ["a", HOSTILE]
    assert read(bullets([HOSTILE], numbered=True)).tags == ["ol", "li"]
