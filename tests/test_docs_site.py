"""The site of docs/ holds together: `make docs` finds the same, but needs mkdocs."""

import re
from pathlib import Path

import pytest

from tests.docs_blocks import ROOT, blocks_of, pages

DOCS = ROOT / "docs"
PAGES = [page.removeprefix("docs/") for page in pages() if page.startswith("docs/")]
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r"^ +- .*: ([\w/-]+\.md)$", CONFIG.partition("\nnav:\n")[2], re.MULTILINE)
    assert sorted(named) == sorted(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_pages_and_headings_of_the_site(page: str) -> None:
    for link in LINK.findall(text_of(DOCS / page)):
        if not re.match(r"\w+://", link):
            file, _, heading = link.partition("#")
            place = (DOCS / page).parent.joinpath(file).resolve() if file else DOCS / page
            assert place.is_relative_to(DOCS) and place.is_file(), link
            assert not heading or heading in headings(place), link


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title_and_says_something_first(page: str) -> None:
    lines = text_of(DOCS / page).split("\n")
    assert lines[0].startswith("# ")
    assert not any(line.startswith("# ") for line in lines[1:])
    assert all(block.language for block in blocks_of(f"docs/{page}"))


def test_a_reader_without_network_has_all_of_it() -> None:
    assert re.search(r"^  font: false\b", CONFIG, re.MULTILINE)
    assert "http" not in CONFIG
    for page in PAGES:
        assert not re.search(r"!\[[^\]]*\]\(\w+://", text_of(DOCS / page)), page


def text_of(file: Path) -> str:
    return FENCED.sub("", file.read_text(encoding="utf-8"))


def headings(file: Path) -> set[str]:
    """Anchors of headings, as the site makes them: letters, digits and hyphens."""
    titles = re.findall(r"^#+ (.*)$", text_of(file), re.MULTILINE)
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles
    }
