"""What the documents name exists."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = (TESTS.parent / "docs" / "failure-modes.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:[a-z_]+/)*test_\w+\.py)(?:::(test_\w+))?…?`", PAGE)))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_fault_is_shown_by_a_test_that_exists(file: str, test: str) -> None:
    text = (TESTS / file).read_text(encoding="utf-8")
    assert f"def {test}" in text
