"""A page as one file of HTML that needs no network: tables to sort and filter, charts inside.

Whatever comes from records is escaped by the templates, and freed of characters that are not seen
or turn the direction of others. The charts' own markup is taken from the files just drawn, with
their colours named so that a dark page can give them others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

import jinja2
from markupsafe import Markup, escape

from bench.errors import one_line
from bench.report.document import Cell, Document, Fold, Heading, Part
from bench.report.drawing import Chart

MOST_CHARACTERS = 5000
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
BEFORE_SVG = re.compile(r"\A.*?(?=<svg)", re.DOTALL)
LEFT_OUT = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>\s*", re.DOTALL)
SIZE = re.compile(r'(<svg[^>]*?) width="([\d.]+)pt" height="[\d.]+pt"')
REFERENCES = re.compile(r'\bid="|url\(#|href="#')
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
IN_THE_DARK = {
    "#000000": "#e8e8e8",
    "#ffffff": "#181a1f",
    "#333333": "#d0d0d0",
    "#4d4d4d": "#a9adb5",
    "#555555": "#b4b8c0",
    "#dddddd": "#3d4149",
    "#a00000": "#ff9a8f",
    "#0072b2": "#4aa8e8",
    "#009e73": "#24bf92",
    "#882255": "#d678a8",
    "#332288": "#9a90ea",
    "#4477aa": "#78a8d8",
}
"""Colours of charts that a dark page would swallow, and what stands for them there: told apart by
any colour vision as theirs are, and with three times the background's contrast or more."""


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": prose, "sort_key": sort_key, "breakable": breakable}
    environment.tests |= {"chart": lambda part: isinstance(part, Chart)}
    return environment.get_template(name)


def html_of(document: Document) -> str:
    """The whole page."""
    return _template("report.html.j2").render(
        title=document.title,
        parts=[*_numbered(document.parts, iter(range(1, 10**9)))],
        sections=[
            part.text for part in document.parts if isinstance(part, Heading) and part.level == 2
        ],
        dark=IN_THE_DARK,
    )


def fragment_of(parts: Sequence[Part]) -> str:
    """Parts alone, for a page of somebody else's, such as a notebook."""
    numbered = [*_numbered([*parts], iter(range(1, 10**9)))]
    return _template("fragment.html.j2").render(parts=numbered)


def _harmless(value: object) -> object:
    """What is written into the page: markup of ours as it is, and text without what obeys."""
    return value if isinstance(value, Markup | int) else one_line(str(value), MOST_CHARACTERS)


def _is_section(part: Part) -> bool:
    return isinstance(part, Heading) and part.level == 2


def _numbered(parts: object, numbers: Iterator[int]) -> Iterator[dict[str, object]]:
    """Each part with its kind and a number of its own, by which it is linked to."""
    assert isinstance(parts, list | tuple)
    sections = iter(range(1, 10**9))
    for part in parts:
        number = next(sections) if _is_section(part) else next(numbers)
        found: dict[str, object] = {"kind": type(part).__name__, "part": part, "number": number}
        if isinstance(part, Fold):
            found["parts"] = [*_numbered(part.parts, numbers)]
        if isinstance(part, Chart):
            found["svg"] = None if part.problem else inline(part, number)
        yield found


def inline(chart: Chart, number: int) -> Markup:
    """A chart's drawing as a part of a page.

    Args:
        chart: on disk.
        number: of the chart: its ids are its own among those of all.
    """
    text = BEFORE_SVG.sub("", chart.svg.read_text(encoding="utf-8"))
    text = LEFT_OUT.sub("", text)
    text = REFERENCES.sub(lambda found: f"{found[0]}c{number}-", text)
    text = COLOUR.sub(lambda found: _named(found[0]), text)
    label = escape(one_line(chart.title))

    def size(found: re.Match[str]) -> str:
        return f'{found[1]} role="img" aria-label="{label}" style="max-width:{found[2]}pt"'

    return Markup(SIZE.sub(size, text, count=1))  # noqa: S704 - drawn by us, its text escaped


def _named(colour: str) -> str:
    return f"var(--c{colour[1:]},{colour})" if colour in IN_THE_DARK else colour


def prose(text: str) -> Markup:
    """Our own paragraphs, with their marks.

    >>> prose("*a* < `b`")
    Markup('<p><em>a</em> &lt; <code>b</code></p>')
    """
    marked = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", str(escape(text.strip())))
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", marked)
    paragraphs = re.split(r"\n{2,}", marked)
    return Markup("\n".join(f"<p>{one}</p>" for one in paragraphs))  # noqa: S704 - escaped above


def breakable(text: str) -> Markup:
    """A name that may go on in the next line where its parts end.

    >>> breakable("a_b(<c>=d)")
    Markup('a_<wbr>b(<wbr>&lt;c&gt;=<wbr>d)')
    """
    parts = re.split(r"(?<=[_(=,])(?=.)", one_line(text, MOST_CHARACTERS))
    return Markup("<wbr>").join(parts)


def sort_key(cell: Cell, is_text: bool) -> str:
    """What a column is sorted by: the first number of a figure; nothing sorts last.

    >>> sort_key(Cell(text="1,766 ± 262"), False), sort_key(Cell(text="no clear difference"), False)
    ('1766', '')
    """
    if is_text:
        return ""
    found = NUMBER.search(cell.text)
    return found[0].replace(",", "") if found else ""
