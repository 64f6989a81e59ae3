"""The site of docs/ holds together: `make docs` finds the same, but needs mkdocs."""

import re
import runpy
from pathlib import Path

import pytest

from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import settings_of
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


ASKED = {
    "OOM": "how-to/troubleshooting.md",
    "out of memory": "how-to/troubleshooting.md",
    "troubleshooting": "how-to/troubleshooting.md",
    "proxy": "how-to/troubleshooting.md",
    "sandbox": "how-to/troubleshooting.md",
    "resume": "how-to/troubleshooting.md",
    "license": "explanation/is-it-for-me.md",
    "SFT": "how-to/sft.md",
    "TRL": "how-to/from-trl-or-verl.md",
    "verl": "how-to/from-trl-or-verl.md",
    "install": "tutorials/install.md",
}


@pytest.mark.parametrize(("words", "page"), ASKED.items())
def test_a_word_that_people_search_for_is_in_a_heading(words: str, page: str) -> None:
    """The site's search ranks titles and headings far above text. It finds words by how they begin,
    and the configuration says what is between words."""
    (separator,) = re.findall(r"^ +separator: '(.*)'$", CONFIG, re.MULTILINE)
    found = re.split(separator, " ".join(titles(DOCS / page)).lower())
    assert all(any(each.startswith(word) for each in found) for word in words.lower().split())


MESSAGES = (
    "by its plan the run needs",
    "one rollout of full length needs",
    "end what listens there, or set",
    "no such folder, and the hub does not give it",
    "devices needed by learner.mesh=",
    "nothing of it was applied, and checkpoint",
    "the policy always says the same and explores nothing",
    "so that nothing is learnt; ",
    "all responses were cut off at",
    "run on Linux 5.13 or later, x86_64 or aarch64, with Landlock and seccomp",
    "stop it or choose another --workdir",
    "holds a run of another configuration",
    "interrupted; the same command goes on",
    "no such checkpoint is kept; kept: ",
    "settings begin with config: --config.",
)


def test_troubleshooting_has_messages_that_are_said() -> None:
    page = text_with_code("how-to/troubleshooting.md")
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "rlboost_jax").rglob("*.py"))
    said = re.sub(r'"\s*f?"', "", "".join(sources))  # strings that go on in the next line
    for message in MESSAGES:
        assert message.partition(" --config")[0] in page, message
        assert message.partition("; kept")[0] in said, message


def text_with_code(page: str) -> str:
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def test_each_setting_has_an_anchor() -> None:
    page = (DOCS / "reference/settings.md").read_text(encoding="utf-8")
    found = re.findall(r'<a id="([\w.]+)"></a>', page)
    assert found == [setting.name for setting in settings_of(RunConfig)]


def test_the_page_of_kernels_has_all_of_them() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "kernels_page.py"))["document"]()
    assert (DOCS / "reference/kernels.md").read_text(encoding="utf-8") == made


def test_a_reader_without_network_has_all_of_it() -> None:
    assert re.search(r"^  font: false\b", CONFIG, re.MULTILINE)
    assert "http" not in CONFIG
    for page in PAGES:
        assert not re.search(r"!\[[^\]]*\]\(\w+://", text_of(DOCS / page)), page


def text_of(file: Path) -> str:
    return FENCED.sub("", file.read_text(encoding="utf-8"))


def headings(file: Path) -> set[str]:
    """Anchors of headings, as the site makes them: letters, digits and hyphens."""
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
        for title in titles(file)
    }


def titles(file: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", text_of(file), re.MULTILINE)
