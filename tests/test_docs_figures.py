"""Figures in README and docs/ are those of `docs/figures.json`, and that file's are true."""

import json
import re
from pathlib import Path

import pytest

from tests import docs_figures
from tests.docs_blocks import ROOT
from tests.docs_figures import FILE, SENTENCES, flat, rewrite, sentences

FIGURES = json.loads(FILE.read_text(encoding="utf-8"))
PAGES = sorted({page for page, _ in SENTENCES})
AGAIN = "python -m tests.docs_figures"
DURATION = re.compile(r"\b\d+(?:\.\d+)?\s*(?:s|min|minutes?|seconds?|hours?)\b")
MEASURED = ("README.md", "docs/index.md")  # no durations but measured ones


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_the_figures(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for where, sentence in sentences(FIGURES):
        assert where != page or sentence in text, AGAIN


def test_every_sentence_has_its_figures() -> None:
    for _, sentence in sentences(FIGURES):
        assert not re.search(r"\{[a-z]", sentence), sentence


def test_plans_are_those_of_the_configurations() -> None:
    assert docs_figures.plans() == FIGURES["plans"], AGAIN


def test_gains_are_those_of_the_experiment() -> None:
    assert docs_figures.lag_gains() == FIGURES["lag"], AGAIN


def test_prices_are_those_of_the_simulations() -> None:
    assert docs_figures.tokens_per_dollar() == FIGURES["prices"], AGAIN
    assert docs_figures.break_even() == FIGURES["break_even"], AGAIN


def test_both_first_pages_say_the_same_of_what_was_shown() -> None:
    tables = [
        (ROOT / page).read_text(encoding="utf-8").split("| shown on |")[1].split("\n\n")[0]
        for page in MEASURED
    ]
    assert tables[0] == tables[1] and tables[0].count("\n") > 6


@pytest.mark.parametrize("page", MEASURED)
def test_other_durations_are_nowhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for _, sentence in sentences(FIGURES):
        text = text.replace(sentence, "")
    assert not DURATION.findall(text)


def test_new_figures_take_the_place_of_old_ones(tmp_path: Path) -> None:
    for page in PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text((ROOT / page).read_text(encoding="utf-8"), encoding="utf-8")
    run = {"headline": "1 update.", "digest": "12ab", "cores": 3, "date": "2000-01-01"}
    new = {**FIGURES, "quickstart": run}
    rewrite(FIGURES, new, tmp_path)
    first_run = (tmp_path / docs_figures.FIRST_RUN).read_text(encoding="utf-8")
    assert "\n1 update.\n" in first_run
    assert "3 cores, on 2000-01-01" in first_run
    with pytest.raises(ValueError, match=r"does not say"):
        rewrite(FIGURES, new, tmp_path)


def test_figures_have_places() -> None:
    assert flat({"a": {"b": 1, "c": {"d": "x"}}}) == {"{a.b}": "1", "{a.c.d}": "x"}
