"""What the documents name exists."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGES = ("failure-modes.md", "algorithms.md")
NAMES = re.compile(r"`((?:[a-z_]+/)*test_\w+\.py)(?:::(test_\w+))?…?`")


def named(page: str) -> list[tuple[str, str]]:
    """Files of tests, and tests in them, that a page names; some by their beginning."""
    text = (TESTS.parent / "docs" / page).read_text(encoding="utf-8")
    return sorted(set(NAMES.findall(text)))


@pytest.mark.parametrize("page", PAGES)
def test_the_page_names_tests(page: str) -> None:
    assert len(named(page)) > 30


@pytest.mark.parametrize(("file", "test"), [name for page in PAGES for name in named(page)])
def test_what_is_said_is_shown_by_a_test_that_exists(file: str, test: str) -> None:
    text = (TESTS / file).read_text(encoding="utf-8")
    assert f"def {test}" in text
