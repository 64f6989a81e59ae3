"""The tokenizer beside an exported model is the run's: read back by transformers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.data.exported_tokenizer import write_tokenizer
from rlboost_jax.data.tokenizers import open_tokenizer
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.data_config import MixtureConfig
from rlboost_jax.settings.data_presets import resolved
from rlboost_jax.settings.huggingface.generation import end_ids
from rlboost_jax.settings.run_config import RunConfig
from tests.data.test_tokenizers import CHAT, MESSAGES
from tests.data.test_tokenizers import folder as folder

OWN = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture
def run(build: Callable[..., RunConfig], write_lines: Callable[..., Path]) -> Callable[..., Any]:
    """`run(tokenizer, chat_template=…)`: one on a data set, by that tokenizer."""
    rows = write_lines([{"prompt": f"two plus {n}?", "answer": str(n)} for n in range(40)])

    def made(tokenizer: Path | str, **data: Any) -> RunConfig:
        return build(rows, answer_column="answer", tokenizer=str(tokenizer), **data)

    return made


def theirs(folder: Path, **options: Any) -> str:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text: str = tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, tokenize=False, **options
    )
    return text


@pytest.fixture
def source(folder: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    copy = tmp_path / "source"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def exported(run: RunConfig, tmp_path: Path) -> tuple[Path, list[str]]:
    to = tmp_path / "out"
    to.mkdir()
    return to, write_tokenizer(run, to)


@pytest.mark.parametrize("where", ["jinja", "in the configuration", "several", "json"])
def test_the_template_is_the_run_s_wherever_the_source_has_its_own(
    where: str, run: Callable[..., RunConfig], source: Path, tmp_path: Path
) -> None:
    file, config = source / "chat_template.jinja", source / "tokenizer_config.json"
    own = file.read_text()
    if where == "in the configuration":
        file.unlink()
        config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": own}))
    elif where == "several":
        (source / "additional_chat_templates").mkdir()
        (source / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    elif where == "json":
        (source / "chat_template.json").write_text(json.dumps({"chat_template": own}))
    trained = run(source, chat_template=OWN)
    to, lines = exported(trained, tmp_path)
    assert lines == ["chat_template.jinja is the run's data.chat_template"]
    assert theirs(to) == open_tokenizer(resolved(trained)[0]).chat(MESSAGES) != CHAT
    assert "chat_template" not in json.loads((to / "tokenizer_config.json").read_text())


def test_without_one_of_the_run_s_all_is_as_it_was(
    run: Callable[..., RunConfig], source: Path, tmp_path: Path
) -> None:
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    to, lines = exported(run(source), tmp_path)
    assert lines == []
    names = {str(p.relative_to(source)) for p in source.rglob("*")}
    assert {str(p.relative_to(to)) for p in to.rglob("*")} == names
    for name in names:
        if (source / name).is_file():
            assert (to / name).read_bytes() == (source / name).read_bytes()
    assert theirs(to, chat_template="default") == CHAT


@pytest.mark.parametrize(
    ("generation", "config", "given", "ends"),
    [
        ({"eos_token_id": [2, 0], "top_k": 20}, {}, (7,), [2, 0, 7]),
        ({"eos_token_id": 2}, {}, (), 2),
        ({"top_p": 0.9}, {}, (), 2),  # of the tokenizer
        ({}, {"eos_token_id": 0, "pad_token_id": 5}, (), 2),  # a run does not ask config.json
        ({}, {"eos_token_id": 2}, (), None),  # config.json says it
        ({}, {}, (9, 8), [2, 8, 9]),
    ],
)
def test_generate_ends_where_the_run_s_responses_did(
    generation: dict[str, Any],
    config: dict[str, Any],
    given: tuple[int, ...],
    ends: Any,
    run: Callable[..., RunConfig],
    source: Path,
    tmp_path: Path,
) -> None:
    file = source / "generation_config.json"
    file.write_text(json.dumps(generation)) if generation else file.unlink()
    to = tmp_path / "out"
    to.mkdir()
    (to / "config.json").write_text(json.dumps(config))  # as the exporter has written it
    trained = run(source, stop_ids=given)
    lines = write_tokenizer(trained, to)
    written = to / "generation_config.json"
    if ends is None:
        assert not written.exists() and not lines
        return
    values = json.loads(written.read_text())
    assert values["eos_token_id"] == ends
    assert values.items() >= {**generation, **config, "eos_token_id": ends}.items()
    listed = ends if isinstance(ends, list) else [ends]
    assert set(listed) == set(open_tokenizer(resolved(trained)[0]).stop_ids)
    said = f"generation_config.json has the run's stop ids: {', '.join(map(str, listed))}"
    lines = [line for line in lines if "samples with" not in line]
    assert lines == ([said] if generation.get("eos_token_id") != ends else [])


@pytest.mark.parametrize(
    ("generation", "theirs", "ours"),
    [
        ({"temperature": 0.6}, "temperature 0.6", "temperature 1.0"),
        ({"top_k": 20, "top_p": 0.8}, "top_p 0.8, top_k 20", "top_p 1.0, top_k 0"),
        ({"repetition_penalty": 1.1}, "repetition_penalty 1.1", "repetition_penalty 1"),
        ({"min_p": 0.1, "temperature": 1}, "min_p 0.1", "min_p 0"),
        ({"temperature": "hot"}, "temperature 'hot'", "temperature 1.0"),
        ({"temperature": 1.0, "top_p": None, "repetition_penalty": 1.0}, "", ""),
    ],
)
def test_a_source_that_samples_otherwise_is_a_line(
    generation: dict[str, Any],
    theirs: str,
    ours: str,
    run: Callable[..., RunConfig],
    source: Path,
    tmp_path: Path,
) -> None:
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **generation}))
    _, lines = exported(run(source), tmp_path)
    said = "generation_config.json samples with {}, as its source; the run did with {}"
    assert lines == ([said.format(theirs, ours)] if theirs else [])


@pytest.mark.parametrize(
    ("theirs", "given", "written"),
    [
        (None, ("</answer>", "数"), ["</answer>", "数"]),
        (["</answer>"], ("\n\n",), ["\n\n", "</answer>"]),
        ("</answer>", (), "</answer>"),
        (["b", "a"], ("a", "b"), ["b", "a"]),
        (None, (), None),
    ],
)
def test_generate_has_the_run_s_stop_strings(
    theirs: Any,
    given: tuple[str, ...],
    written: Any,
    run: Callable[..., RunConfig],
    source: Path,
    tmp_path: Path,
) -> None:
    said = {} if theirs is None else {"stop_strings": theirs}
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], **said}))
    lines = write_tokenizer(run(source, stop_strings=given), tmp_path)
    values = json.loads((tmp_path / "generation_config.json").read_text())
    assert values.get("stop_strings") == written and values["eos_token_id"] == [2, 0]
    assert [line for line in lines if "stop strings" in line] == [
        f"generation_config.json has the run's stop strings: {', '.join(map(repr, written or ()))}"
    ] * (written != theirs)


def test_what_no_file_carries_is_a_line(
    run: Callable[..., RunConfig], source: Path, tmp_path: Path
) -> None:
    dated = "{{ strftime_now('%d %b %Y') }}" + OWN
    trained = run(source, chat_template=dated, system_prompt="Think hard.")
    for number, (changed, says) in enumerate(
        (
            (trained, "asks for today's date, and the run was trained with 26 July 2024"),
            (trained, 'no file carries data.system_prompt; begin each chat with it: "Think hard."'),
            (run(source, chat="never"), "data.chat is 'never': the run's prompts went through no"),
            (
                run(source, template="{prompt} Be brief."),
                'in which each question stood: "{prompt} Be brief."',
            ),
            (
                replace(trained, data=replace(trained.data, chat_options={"thinking": False})),
                'template\'s options; give apply_chat_template {"thinking": false}',
            ),
            (run("bytes"), "no tokenizer is written: the run's tokens are bytes"),
            (
                replace(trained, data=replace(trained.data, tokenizer="/gone")),
                "the tokenizer's files are missing: data.tokenizer is '/gone': no such folder",
            ),
            (
                replace(
                    trained,
                    task=replace(trained.task, name="environment"),
                    environment=replace(
                        trained.environment, template_options={"enable_thinking": False}
                    ),
                ),
                'template\'s options; give apply_chat_template {"enable_thinking": false}',
            ),
        )
    ):
        (tmp_path / str(number)).mkdir()
        _, lines = exported(changed, tmp_path / str(number))
        assert any(says in line for line in lines), lines


def test_of_a_mixture_each_data_set_has_its_own_lines(
    run: Callable[..., RunConfig], source: Path, tmp_path: Path
) -> None:
    rows = run(source).data.source
    entry = {"source": rows, "prompt_column": "prompt", "answer_column": "answer"}
    mixture = (
        {**entry, "name": "sums", "system_prompt": "Add."},
        {**entry, "name": "terse", "template": "{prompt} Be brief."},
        {"preset": "countdown", "source": rows},
    )
    trained = run(source)
    data = replace(
        trained.data,
        **{
            "source": "",
            "answer_column": "",
            "mixture": tuple(MixtureConfig(**e) for e in mixture),
        },
    )
    _, lines = exported(replace(trained, data=data), tmp_path)
    assert lines[0].endswith("data.system_prompt of 'sums'; begin each chat with it: \"Add.\"")
    assert lines[1].startswith("no file carries data.template of 'terse', in which each question")
    assert lines[2].startswith("no file carries data.template of 'countdown', in which each")
    assert len(lines) == 3


def test_the_tokenizer_is_the_run_s_and_not_the_source_s(
    run: Callable[..., RunConfig], source: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("another")
    trained = run(source)
    trained = replace(trained, model=replace(trained.model, source=str(tmp_path / "model")))
    to, _ = exported(trained, tmp_path)
    assert (to / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"eos_token_id": true}', "eos_token_id is True; it must be an id or a list of ids"),
        ('{"eos_token_id": ["<|end|>"]}', "eos_token_id is ['<|end|>']; it must be an id"),
        ('{"eos_token_id": [2, -1]}', "eos_token_id is [2, -1]; it must be an id"),
        ('{"eos_token_id": 2.5}', "eos_token_id is 2.5; it must be an id"),
        ('{"eos_token_id": {"a": 1}}', "eos_token_id is {'a': 1}; it must be an id"),
        ("[1]", "generation_config.json is a list; expected a JSON object"),
        ("[" * 100_000, "generation_config.json is nested too deeply"),
    ],
)
def test_ends_that_are_no_ids_are_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        end_ids(tmp_path)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_what_else_ends_a_text_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = {"eos_token_id": [3, 2, 3], "glitter": [[7]], "sparkle": 1, "top_k": 20}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert end_ids(tmp_path) == (3, 2)
    (said,) = (each.getMessage() for each in caplog.records)
    assert said.endswith("generation_config.json: passed over: glitter, sparkle")
