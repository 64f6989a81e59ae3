import pytest

from configs import base
from rlboost_jax.chat.conversation import described
from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.data.tokenizers import open_tokenizer
from rlboost_jax.settings.config_loading import run_config
from tests.chat.forms import FORMS, Form

BEGIN = "<|begin|>"
ADD = described(
    "add",
    "the sum of two numbers",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
)
TEXTS = ["the answer of the tool is seven", "\n\nsystem user assistant tool model ipython\n"]


def saved(folder, form: Form, *, spaces=False):
    """A BPE tokenizer with a form's marks and template, as a folder.

    Args:
        spaces: as SentencePiece has them, with one put before each stretch of text; else by bytes.
    """
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    if spaces:
        made = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
        made.decoder = tokenizers.decoders.Sequence(
            [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Metaspace()]
        )
        alphabet = [chr(i) for i in range(32, 127)] + ["\n"]
        alphabet += [f"<0x{i:02X}>" for i in range(256)]
    else:
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS * 4,
        tokenizers.trainers.BpeTrainer(
            vocab_size=len(alphabet) + 80,
            special_tokens=[BEGIN, *form.stops, *form.special],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=form.stops[0], bos_token=BEGIN
    )
    fast.add_tokens(list(form.added))
    fast.chat_template = form.template
    fast.save_pretrained(folder)
    return folder


def opened(folder, form: Form, **data):
    """The tokenizer as a run has it."""
    config = base.get_config()
    stops = tuple(range(1, 1 + len(form.stops)))
    config.data.update({"tokenizer": str(folder), "stop_ids": stops, **data})
    return open_tokenizer(run_config(config).data)


@pytest.fixture(scope="session")
def tokenizer_of(tmp_path_factory):
    """The tokenizer of a form, by name or as one made up by a test."""
    known = {}

    def make(form, **data):
        form = FORMS[form] if isinstance(form, str) else form
        key = (form, tuple(data.items()))
        if key not in known:
            known[key] = opened(saved(tmp_path_factory.mktemp("tokenizer"), form), form, **data)
        return known[key]

    return make


@pytest.fixture(scope="session")
def talk(tokenizer_of):
    """The conversation of a form."""
    known = {}

    def make(form, tools=(), **options):
        key = (form, len(tools), str(options))
        if key not in known:
            known[key] = conversation_of(tokenizer_of(form), tools=tools, **options)
        return known[key]

    return make
