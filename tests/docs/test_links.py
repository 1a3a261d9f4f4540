"""What the pages say is elsewhere is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}"


def test_every_page_can_be_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {target.partition("#")[0] for target in LINK.findall(readme)}
    for page in PAGES[1:]:
        own = f"docs/{page.name}"
        others = [other.read_text(encoding="utf-8") for other in PAGES[1:] if other != page]
        assert own in named or any(f"({page.name}" in text for text in others), own
