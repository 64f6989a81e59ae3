"""What the documents name exists."""

import ast
import re
from pathlib import Path

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.command_line import check_overrides
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.simulator.sim_config import SimConfig
from tests.docs_blocks import blocks_of, pages

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "rlboost_jax",
    "kernels",
    "configs",
    "benchmarks",
    "experiments",
    "tests",
    "tools",
    "docs",
)
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.[mp][dy]"))]
)
PATHS = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md))(?:::\w+…?)?`")
LINKS = re.compile(r"\]\((?!\w+://|#)([^)#]+)")
SETTINGS = re.compile(r"--config\.(?!section\.)[a-z_0-9.]+(?==)")


@pytest.mark.parametrize("page", [file for file in FILES if file.endswith(".md")])
def test_files_links_and_settings_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    saved = {block.saved_as for block in blocks_of(page)} if page in pages() else set()
    for name in set(PATHS.findall(text)) - saved:  # a reader's own
        assert any(f"/{file}".endswith(f"/{name}") for file in FILES), name
    for link in LINKS.findall(FENCED.sub("", text)):
        assert (ROOT / page).parent.joinpath(link).exists(), link
    for setting in SETTINGS.findall(text):
        assert any(_known(setting, record) for record in (RunConfig, SimConfig)), setting


def _known(setting: str, record: type) -> bool:
    try:
        check_overrides([f"{setting}=1"], record)
    except ConfigError:
        return False
    return True


PROSE = [file for file in FILES if file.endswith(".md")]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TABLE_OR_CODE = ("|", "    ")


def test_pages_everywhere_are_looked_at() -> None:
    folders = {page.partition("/")[0] for page in PROSE}
    assert folders == {
        "README.md",
        "BUILD-notes.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs",
        "rlboost_jax",
        "kernels",
        "benchmarks",
        "experiments",
        "tests",
    }


@pytest.mark.parametrize("page", PROSE)
def test_prose_fits_120_columns(page: str) -> None:
    lines = FENCED.sub("", (ROOT / page).read_text(encoding="utf-8")).splitlines()
    prose = [line for line in lines if not line.startswith(TABLE_OR_CODE)]
    assert prose
    assert not [line for line in prose if len(line) > 120]


PAGE = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.md")


def test_pages_that_code_names_exist() -> None:
    named = {
        file: PAGE.findall((ROOT / file).read_text(encoding="utf-8"))
        for file in FILES
        if file.endswith(".py")
    }
    assert len({page for pages in named.values() for page in pages}) > 10
    missing = [(file, page) for file, pages in named.items() for page in pages if page not in FILES]
    assert not missing


WALKS = ROOT / "docs" / "how-to" / "extending.md"
DIFFS = re.compile(r"^```diff\n(.*?)^```", re.MULTILINE | re.DOTALL)


def hunks(diff: str) -> list[tuple[str, str, str]]:
    """(file, its lines before, its lines after) of each hunk."""
    found: list[tuple[str, str, str]] = []
    for changes in re.split(r"^--- a/", diff, flags=re.MULTILINE)[1:]:
        for hunk in changes.split("\n@@\n")[1:]:
            lines = hunk.rstrip("\n").split("\n")
            before, after = (
                "\n".join(line[1:] for line in lines if not line.startswith(sign)) for sign in "+-"
            )
            found.append((changes.partition("\n")[0], before, after))
    return found


def test_walks_through_what_is_added_are_of_the_files_as_they_are() -> None:
    """The advantage's, reward's and model family's are applied; the others could be."""
    found = [hunks(diff) for diff in DIFFS.findall(WALKS.read_text(encoding="utf-8"))]
    assert [len(diff) for diff in found] == [2, 2, 2, 2, 1]
    for name, _, after in (hunk for diff in found[:3] for hunk in diff):
        assert f"\n{after}\n" in (ROOT / name).read_text(encoding="utf-8"), after
    for name, before, _ in (hunk for diff in found[3:] for hunk in diff):
        assert f"\n{before}\n" in (ROOT / name).read_text(encoding="utf-8"), before


ROOMS = {path.parent for path in (ROOT / "rlboost_jax").glob("*/__init__.py")} - {
    ROOT / "rlboost_jax" / "configs"  # stands for configs/ at the root
}
BESIDE = {ROOT / folder for folder in ("kernels", "tests", "experiments")}


def test_each_room_has_notes_of_at_most_150_lines() -> None:
    """`BUILD-notes.md` is one page, and links to all of them."""
    page = (ROOT / "BUILD-notes.md").read_text(encoding="utf-8")
    assert len(page.split()) <= 900
    listed = {ROOT / link for link in LINKS.findall(page) if link.endswith("NOTES.md")}
    assert listed == {folder / "NOTES.md" for folder in ROOMS | BESIDE}
    lines = {note: note.read_text(encoding="utf-8").count("\n") for note in listed}
    assert not {note: number for note, number in lines.items() if number > 150}


def test_functions_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)(?:\.(\w+))?`", page)
    assert len(named) >= 10
    for file, name, method in named:
        nodes = ast.parse((ROOT / "rlboost_jax" / file).read_text(encoding="utf-8")).body
        (found,) = [node for node in nodes if getattr(node, "name", "") == name]
        assert not method or method in [getattr(node, "name", "") for node in ast.walk(found)]
