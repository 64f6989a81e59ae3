"""Text to tokens, stop ids and chats; Hugging Face's side built here, offline."""

import contextlib
import dataclasses
import json
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import base
from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.data.dataset import Dataset
from rlboost_jax.data.stop_strings import NO_STRINGS
from rlboost_jax.data.tokenizer_check import check_belongs
from rlboost_jax.data.tokenizers import ByteTokenizer, open_tokenizer
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.special_tokens import kept_ids, unseen_lines
from rlboost_jax.sequences.stop_table import stop_table
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.rewards_config import RewardConfig
from tests.chat.conftest import saved
from tests.chat.forms import Form
from tests.patience import PATIENCE_SECONDS

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "two + two?"}]
CHAT = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\ntwo + two?<|im_end|>\n" + (
    "<|im_start|>assistant\n"
)


def data(**changes):
    config = base.get_config()
    config.task.name, config.data.source = "dataset", "rows.jsonl"
    config.rewards.functions, config.warmup.max_updates = ({"name": "exact"},), 0
    config.data.update({"tokenizer": "bytes", **changes})
    return run_config(config).data


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A checkpoint's folder with tokenizer.json, a chat template and generation_config.json."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(
        ["two plus two is four", "one plus one is two"] * 4,
        tokenizers.trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    path = tmp_path_factory.mktemp("checkpoint")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    return path


@given(st.text())
def test_bytes_there_and_back(text):
    tokenizer = open_tokenizer(data())
    ((begin, *ids),) = tokenizer.encode([text], chat=False)
    assert begin == ByteTokenizer.BEGIN and all(0 <= i < 256 for i in ids)
    assert tokenizer.decode([*ids, *tokenizer.stop_ids]) == text
    assert tokenizer.text([begin, *ids, ByteTokenizer.END]) == f"<begin>{text}<end>"


def test_any_token_of_the_policy_is_some_text():
    tokenizer = open_tokenizer(data())
    assert tokenizer.decode([0xE2, 0x98, 300, 257, 0x83, 0xFF]) == "☃\N{REPLACEMENT CHARACTER}"
    assert tokenizer.text([97, 300, 257]) == "a<300><end>"


def test_bytes_take_a_template_of_the_run():
    pytest.importorskip("jinja2")
    tokenizer = open_tokenizer(data(chat_template=TEMPLATE))
    assert tokenizer.has_chat and tokenizer.chat(MESSAGES) == CHAT
    with pytest.raises(ConfigError, match=r"data.chat_template is no Jinja .* line 1: "):
        open_tokenizer(data(chat_template="{% for %}")).chat(MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | tojson }}",
        "{{ tools[0] | tojson(indent=2) }}{{ messages[0] | tojson(sort_keys=true) }}",
        "{% if tools is not none %}tools{% endif %}{% if documents is defined %}none{% endif %}",
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}\n"
        "{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}{{ messages[0]['content'][:3] }}",
        "{{ dict(a=1) }}{{ enable_thinking }}{{ messages | map(attribute='role') | join(',') }}",
        "Today: {{ strftime_now('%d %b %Y') }}",
    ],
)
@pytest.mark.parametrize("tools", [(), ({"type": "function", "function": {"name": "<f>"}},)])
def test_bytes_render_a_template_as_transformers_does(template, tools, folder):
    messages = [{"role": "user", "content": "<a> & 'b' ü"}, {"role": "assistant", "content": "c"}]
    if "tools[0]" in template and not tools:
        return
    ours, theirs = (
        open_tokenizer(data(tokenizer=str(name), chat_template=template))
        for name in ("bytes", folder)
    )
    given = {"tools": tools, "options": {"enable_thinking": False}}
    assert ours.chat(messages, **given) == theirs.chat(messages, **given)


def test_bytes_give_a_template_s_own_reason():
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ChatRefused, match="TemplateError: roles must alternate"):
        open_tokenizer(data(chat_template=template)).chat(MESSAGES)


def test_a_hugging_face_folder(folder):
    tokenizer = open_tokenizer(data(tokenizer=str(folder)))
    assert tokenizer.stop_ids == (0, 2), "of the tokenizer and of generation_config.json"
    assert tokenizer.chat(MESSAGES) == CHAT
    (ids,) = tokenizer.encode([CHAT], chat=True)
    assert tokenizer.text(ids) == CHAT and ids[0] == 1 and max(ids) < tokenizer.vocab_size
    assert tokenizer.decode([*ids[-1:], 2, 0]) == tokenizer.text(ids[-1:])
    assert tokenizer.encode([], chat=True) == []


def test_marks_that_a_tokenizer_adds_stand_where_they_belong(folder, tmp_path):
    """A beginning before plain text only, since a template writes its own; no end before the
    policy has spoken."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>",
        special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)],
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>"
    ).save_pretrained(tmp_path)
    tokenizer = open_tokenizer(data(tokenizer=str(tmp_path)))
    (plain,), (chat,) = (tokenizer.encode(["two"], chat=chat) for chat in (False, True))
    assert tokenizer.text(plain) == "<|endoftext|>two"
    assert tokenizer.text(chat) == "two"
    assert not tokenizer.has_chat


def test_it_is_what_transformers_makes_of_the_messages(folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = open_tokenizer(data(tokenizer=str(folder)))
    ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode([tokenizer.chat(MESSAGES)], chat=True) == [ids]
    assert tokenizer.encode(["two plus two", "four"], chat=False) == [
        theirs("two plus two")["input_ids"],
        theirs("four")["input_ids"],
    ]


def test_no_program_of_a_repository_is_run(folder, tmp_path, monkeypatch):
    """transformers would ask at the terminal, and the user here says yes to everything."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "own.py").write_text(
        f"open({str(tmp_path / 'was_run')!r}, 'w')\n"
        "from transformers import PreTrainedTokenizerFast as Own\n"
    )
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with contextlib.suppress(ConfigError):  # some releases go on with a class of their own
        open_tokenizer(data(tokenizer=str(tmp_path)))
    assert not (tmp_path / "was_run").exists()


def test_the_configuration_has_the_last_word(folder):
    tokenizer = open_tokenizer(
        data(
            tokenizer=str(folder),
            chat_template="{% for m in messages %}{{ m.content }};{% endfor %}",
            stop_ids=(7,),
        )
    )
    assert tokenizer.chat(MESSAGES) == "Be brief.;two + two?;"
    assert tokenizer.stop_ids == (0, 2, 7)


def ended_by_hand(tokenizer, ids, strings):
    """The first number of tokens whose text has a string in it, and the text before it."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.text(ids[:count])
        if places := [place for s in strings if (place := text.find(s)) >= 0]:
            return count, text[: min(places)]
    return None, tokenizer.text(ids)


def assert_ends(tokenizer, strings, texts):
    """Check ends on texts as the tokenizer writes them, and on random tokens."""
    draw = random.Random(1)
    rows = [row for row in tokenizer.encode(texts, chat=True) if row]
    rows += [draw.choices(range(tokenizer.vocab_size), k=60) for _ in range(40)]
    rows += [[*one, *other] for one, other in zip(rows[:20], draw.sample(rows, 20), strict=True)]
    table, found = stop_table(tokenizer.stop_strings.table), 0
    for ids in rows:
        count, before = ended_by_hand(tokenizer, ids, strings)
        assert table.end(ids, len(ids)) == count
        found += count is not None
        assert tokenizer.stop_strings.before(ids[:count], tokenizer.text) == before
    assert found >= len(texts) // 2


TEXTS = (
    *("two plus two</answer> is", "ä数学🙂 one", "two\n\n\nfour", "one\nHuman: two", " is two is"),
    *("is<|im_end|>", "数", "plus🙂🙂plus", "two plus one is", "</answer></answer>"),
)
STOPS = ("</answer>", "数学", "\n\n", "\nHuman:", "🙂p", "<|im_start|>", "o plus o")


def test_stop_strings_in_the_bytes_of_tokens(folder):
    """Characters of several tokens, tokens of several characters, special tokens."""
    assert_ends(open_tokenizer(data(tokenizer=str(folder), stop_strings=STOPS)), STOPS, TEXTS)


def test_stop_strings_in_pieces_of_sentencepiece(tmp_path):
    form = Form(stops=("<|im_end|>",), template=TEMPLATE)
    path = saved(tmp_path, form, spaces=True)
    assert_ends(open_tokenizer(data(tokenizer=str(path), stop_strings=STOPS)), STOPS, TEXTS)


@pytest.mark.parametrize(
    ("said", "strings"),
    [("\n\n", ("\n\n",)), (["</a>", "数"], ("</a>", "数")), (None, ()), ([], ())],
)
def test_stop_strings_of_the_generation_configuration(folder, tmp_path, said, strings):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"stop_strings": said}))
    tokenizer = open_tokenizer(data(tokenizer=str(tmp_path)))
    assert tokenizer.stop_strings.strings == strings
    both = open_tokenizer(data(tokenizer=str(tmp_path), stop_strings=("xy", *strings[:1])))
    assert set(both.stop_strings.strings) == {"xy", *strings}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([""], "has '', which every"),
        (["a", 7], "has 7, which is no text"),
        (["x" * 200], "200 bytes"),
        (["a\ud800"], "half of a surrogate pair in .stop_strings.0"),
        ({"a": 1}, "a text or several"),
    ],
)
def test_generation_configurations_of_no_use(folder, tmp_path, said, message):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"stop_strings": said}))
    with pytest.raises(ConfigError, match=rf"generation_config\.json.*{message}"):
        open_tokenizer(data(tokenizer=str(tmp_path)))


def test_a_vocabulary_that_does_not_say_its_bytes_has_no_stop_strings(tmp_path):
    """WordPiece: what a token adds to a text depends on the token before it."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {
        word: n for n, word in enumerate(("[UNK]", "[END]", "the", "answer", "is", "##s", "."))
    }
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="[END]", unk_token="[UNK]"
    ).save_pretrained(tmp_path)
    assert open_tokenizer(data(tokenizer=str(tmp_path))).stop_strings is NO_STRINGS
    with pytest.raises(ConfigError, match=r"not say which bytes .* take data.stop_ids"):
        open_tokenizer(data(tokenizer=str(tmp_path), stop_strings=("the",)))


def test_a_template_may_refuse(folder):
    tool = [{"role": "tool", "content": "4"}]
    with pytest.raises(ChatRefused, match="no tools here"):
        open_tokenizer(data(tokenizer=str(folder))).chat(tool)


def test_a_tokenizer_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match=r"data.tokenizer '.*' cannot be loaded"):
        open_tokenizer(data(tokenizer=str(tmp_path)))


def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    """One with more special tokens is the model's own; one with other ids is not."""
    check_belongs(open_tokenizer(data(tokenizer=str(folder))), data(), "")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    own = data(tokenizer=str(other))
    check_belongs(open_tokenizer(own), own, str(folder))
    said = r"data\.tokenizer 'bytes' is not the one of model\.source .* instead of .*set "
    with pytest.raises(ConfigError, match=said):
        check_belongs(open_tokenizer(data()), data(), str(folder))
    (other / "tokenizer.json").unlink()
    check_belongs(open_tokenizer(data()), data(), str(other))


def test_a_data_set_asks_whose_tokenizer_it_has(folder, build, write_lines):
    rows = write_lines([{"question": "two?", "answer": "2"}] * 9)
    run = build(rows, prompt_column="question", answer_column="answer")
    Dataset(run)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, source=str(folder)))
    with pytest.raises(ConfigError, match=r"is not the one of model\.source"):
        Dataset(run)


@pytest.fixture(scope="session")
def thinking(folder, tmp_path_factory):
    """The same with `<think>` and `</think>` as special tokens, and `<answer>` as none."""
    transformers = pytest.importorskip("transformers")
    made = transformers.AutoTokenizer.from_pretrained(folder)
    made.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    made.add_tokens(["<answer>", "</answer>"])
    path = tmp_path_factory.mktemp("thinking")
    made.save_pretrained(path)
    return path


THOUGHT = "<think>two</think> <answer>four</answer>"


def test_special_tokens_stay_in_what_rewards_read_if_they_are_named(thinking):
    tokenizer = open_tokenizer(data(tokenizer=str(thinking)))
    (ids,) = tokenizer.encode([THOUGHT + "<|im_end|>"], chat=True)
    assert tokenizer.decode(ids) == "two <answer>four</answer>", "as ever"
    tags = [tokenizer.special[tag] for tag in ("<think>", "</think>")]
    assert tokenizer.decode(ids, keep=tags) == THOUGHT
    assert tokenizer.decode(ids, keep=[*tags, tokenizer.special["<|im_end|>"]]).endswith(">")
    assert tokenizer.decode(ids, keep=tags[:1]) == "<think>two <answer>four</answer>"
    assert {"<think>", "</think>", "<|im_end|>"} <= tokenizer.special.keys()
    assert not {"<answer>", "</answer>"} & tokenizer.special.keys()
    plain = open_tokenizer(data())
    assert plain.decode([97, plain.END, 98], keep=[plain.special["<end>"]]) == "a<end>b"


TAGS = "<think>, </think>"


@pytest.mark.parametrize(
    ("function", "kept", "unseen"),
    [
        ({"name": "format"}, (), TAGS),
        ({"name": "format"}, ("<think>",), "</think>"),
        ({"name": "format"}, ("<think>", "</think>"), ""),
        ({"name": "format", "options": {"tags": "answer"}}, (), ""),
        ({"name": "regex", "options": {"pattern": "</think>.*four"}}, (), "</think>"),
        ({"name": "regex", "options": {"pattern": r"<\|im_end\|>"}}, (), "<|im_end|>"),
        ({"name": "exact", "options": {"extract": "answer_tag"}}, (), ""),
        ({"name": "exact"}, (), ""),
    ],
)
def test_a_reward_that_looks_for_what_it_never_sees_is_told_of(thinking, function, kept, unseen):
    tokenizer = open_tokenizer(data(tokenizer=str(thinking)))
    ids = kept_ids(kept, tokenizer.special, "mine")
    lines = list(unseen_lines([RewardConfig(**function)], tokenizer.special, ids))
    assert len(lines) == bool(unseen)
    for line in lines:
        assert f"looks for {unseen}, special" in line
        assert f"set rewards.special_tokens to {tuple(unseen.split(', '))!r}" in line


def test_tags_of_answers_may_be_special_too():
    functions = [
        RewardConfig(name="countdown"),
        RewardConfig(name="exact", label="tag", options={"extract": "answer_tag"}),
    ]
    first, second = unseen_lines(functions, {"<answer>": 7}, ())
    assert "'countdown' looks for <answer>" in first and "'tag' looks for <answer>" in second


def test_only_special_tokens_can_be_kept():
    with pytest.raises(ConfigError, match=r"rewards.special_tokens has '<thnk>'.*<think>"):
        kept_ids(("<thnk>",), {"<think>": 5}, "mine")
    with pytest.raises(ConfigError, match="no special token of 'mine'; it has none; what is not"):
        kept_ids(("<think>",), {}, "mine")


def test_a_run_s_rewards_read_what_it_says_and_its_start_says_what_they_miss(
    thinking, build, write_lines, caplog
):
    rows = write_lines([{"prompt": f"two {n}", "answer": "four"} for n in range(8)])
    found = []
    for kept in ((), ("<think>", "</think>")):
        run = build(rows, rewards=({"name": "format"},), tokenizer=str(thinking), chat="never")
        run = dataclasses.replace(
            run, rewards=dataclasses.replace(run.rewards, special_tokens=kept)
        )
        with caplog.at_level("WARNING"), contextlib.closing(Dataset(run)) as dataset:
            (ids,) = dataset.tokenizer.encode([THOUGHT], chat=True)
            found.append(dataset.ask(dataset.train(0)[0], ids).result(PATIENCE_SECONDS).reward)
    assert found == [0.0, 1.0]
    (line,) = [r.getMessage() for r in caplog.records if "format" in r.getMessage()]
    assert "'format' looks for <think>, </think>" in line and "never finds them" in line


def test_tokens_to_keep_where_no_reward_reads_anything_are_an_error():
    config = base.get_config()
    config.rewards.special_tokens = ("<think>",)
    with pytest.raises(ConfigError, match=r"rewards.special_tokens is '<think>', and task"):
        run_config(config)
    config.task.name = "dataset"
    config.data.source, config.data.tokenizer = "rows.jsonl", "bytes"
    config.rewards.functions = ()
    with pytest.raises(ConfigError, match="no reward function to read them"):
        run_config(config)
