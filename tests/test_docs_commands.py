"""Each command of README and docs/ is run by something, or says why it is not."""

import importlib.util
import re
from pathlib import Path

import pytest

from rlboost_jax.configs import base
from rlboost_jax.settings.command_line import check_overrides
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig
from tests import docs_commands
from tests.docs_blocks import ROOT, SHELLS, Block, blocks, blocks_of, pages, with_flags

BLOCKS = [block for page in pages() for block in blocks_of(page)]
SHELL = [block for block in BLOCKS if block.is_shell]
STARTS = r"(?:python3?|pip|make|pytest|git|bash|export|kill|srun|sbatch|rlboost|\.venv/bin/\w+)"
COMMAND = re.compile(rf"^\s*(?:\$ )?{STARTS}\s[-\w./]", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+)…?)?`")
INLINE = re.compile(rf"`({STARTS}[^`]*)`")
MODULE = re.compile(r"python3? -m ([\w.]+)")
TARGET = re.compile(r"\bmake ([a-z][\w-]*)")
FLAG = re.compile(r"(?<![\w-])--(?!config\b)([a-z_]\w*(?:-\w+)*)")
OURS = ("rlboost_jax", "tests", "benchmarks", "experiments", "tools", "rlboost_kernels")
ABOUT_RUNS = {"run", "quick", "run with"}


def test_every_page_is_looked_at() -> None:
    assert {"README.md", "docs/index.md", "docs/tutorials/first-run.md"} <= set(pages())
    assert len(SHELL) > 30


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.place)
def test_a_command_is_run_or_says_why_not(block: Block) -> None:
    if block.fate == "not run":
        assert len(block.reason.split()) > 2, "a mark says why"
    elif block.fate == "tested by":
        file, test = TEST.findall(block.reason)[0]
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {test}" in text
    else:
        assert block.fate in ABOUT_RUNS
        assert not re.search(r"\b(?:HOST|PORT|FOLDER|RUN|CONFIG)\b|…", block.text), "not as it is"
        assert with_flags(block)


@pytest.mark.parametrize("page", pages())
def test_commands_are_in_shell_blocks(page: str) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    inside = False
    for number, line in enumerate(lines, 1):
        inside ^= line.startswith("```")
        assert inside or not (line.startswith("    ") and COMMAND.match(line)), number
    for block in blocks_of(page):
        assert block.is_shell or not COMMAND.search(block.text), block.place


@pytest.mark.parametrize("page", pages())
def test_modules_targets_and_flags_exist(page: str) -> None:
    """Commands in sentences count, too."""
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = [*INLINE.findall(text), *(b.text for b in blocks_of(page) if b.is_shell)]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in commands:
        assert not set(TARGET.findall(command)) - targets, command
        for line in command.replace("\\\n", " ").splitlines():
            for module in MODULE.findall(line):
                if module.partition(".")[0] in OURS:
                    assert importlib.util.find_spec(module), module
                    flags = FLAG.findall(line.partition(module)[2])
                    unknown = [flag for flag in flags if flag not in flags_of(module)]
                    assert not unknown, f"{module}: {unknown}"


def flags_of(module: str) -> set[str]:
    """Words in quotes in the module's file, or in those of its folder: flags are among them."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in folder.glob("*.py")] or [Path(spec.origin)]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return {"help", *re.findall(r"\"(?:--)?([a-z][\w-]*)\"", text)}


def test_quick_commands_run(tmp_path: Path) -> None:
    root = docs_commands.checkout(tmp_path)
    quick = [block for block in SHELL if block.fate == "quick"]
    assert len(quick) > 4
    for block in quick:
        output = tmp_path / "output.txt"
        code = docs_commands.carry_out(block, root, output)
        assert code == 0, f"{block.place}\n{output.read_text()}"


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    block = Block(page="p.md", line=1, language="sh", text="echo before\nfalse\necho after")
    output = tmp_path / "output.txt"
    assert docs_commands.carry_out(block, tmp_path, output) == 1
    assert output.read_text() == "before\n"


PAGE = """\
Save this as `mine.py`:

```python
x = 1
```

<!-- run with main --two; tool --one -->
```sh
python -m main --zero
python tool x
```

```text
python is a snake
```
"""


def test_marks_and_files_are_read() -> None:
    saved, shell, text = blocks("p.md", PAGE)
    assert (saved.saved_as, saved.text, saved.line) == ("mine.py", "x = 1", 3)
    assert (shell.fate, shell.saved_as) == ("run with", "")
    assert with_flags(shell) == "python -m main --two --zero\npython tool --one x"
    assert (text.is_shell, text.saved_as) == (False, "")
    assert shell.language in SHELLS


@pytest.mark.parametrize(
    "text",
    ["```\nls\n```", " ```sh\n ls\n ```", "```sh\nls", "<!-- quick -->\n\n```sh\nls\n```"],
)
def test_what_could_be_misread_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"p\.md:1"):
        blocks("p.md", text)


def test_the_own_run_of_the_readme_is_short_and_that_of_the_tutorial() -> None:
    (own,) = (block for block in blocks_of("README.md") if block.saved_as)
    (same,) = (b for b in blocks_of("docs/tutorials/bring-your-own.md") if b.saved_as)
    assert (own.saved_as, own.text) == (same.saved_as, same.text)
    assert len([line for line in own.text.splitlines() if line]) <= 25
    namespace: dict[str, object] = {"__name__": "my_run"}
    exec(own.text, namespace)  # as an import does
    reward = namespace["right"]
    assert callable(reward)
    assert reward([r"so \boxed{41}", r"\boxed{14}"], ["41", "41"]) == [1.0, 0.0]


SET = re.compile(r"\bconfig(\.[a-z_0-9.]+)(?= = )")
ASSIGNING = [block for block in BLOCKS if block.language == "python" and SET.search(block.text)]


@pytest.mark.parametrize("block", ASSIGNING, ids=lambda block: block.place)
def test_settings_in_code_exist(block: Block) -> None:
    for name in SET.findall(block.text):
        check_overrides([f"--config{name}=1"], RunConfig)


def test_the_run_of_trl_written_here_is_valid() -> None:
    (block,) = (each for each in ASSIGNING if each.page == "docs/how-to/from-trl-or-verl.md")
    config = base.get_config()
    exec(block.text, {"config": config})
    assert run_config(config).algorithm.group_size == 8


def test_the_readme_has_at_most_900_words() -> None:
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    assert len([word for word in words if re.search(r"\w", word)]) <= 900
