"""Bytes of single tokens: joined they are the text, wherever its characters are cut."""

import pytest

from rlboost_jax.data.token_bytes import bytes_of_tokens
from rlboost_jax.data.tokenizers import ByteTokenizer, open_tokenizer
from tests.data.test_tokenizers import data

TEXTS = (
    "The answer is 42.",
    "数学",
    "🙂‍↔️ half a character",
    "ä\u0300 ñ",
    "\x00\x7f\xa0\xad\u2581",
    "tab\tnew\nline  two",
    "\u0120Ġ",
)
HALF = "🙂"
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")


def marked(made):
    made.add_special_tokens(["<|end|>", "<｜begin▁of▁text｜>"])  # DeepSeek's marks have such bars
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


def numbered(names):
    return {name: number for number, name in enumerate(names)}


def by_bytes():
    """As Qwen, Llama 3 and GPT-2 have it."""
    names = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("Ġt", "h"), ("æ", "ķ")]
    vocabulary = numbered([*names, *("".join(pair) for pair in merges)])
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return marked(made)


def with_fallback(decoder):
    """As Llama 2, Mistral and Gemma have it."""
    names = [f"<0x{i:02X}>" for i in range(256)] + [chr(i) for i in range(33, 127)] + ["▁", "▁t"]
    model = tokenizers.models.BPE(numbered(names), [("▁", "t")], byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoder
    return marked(made)


def llama_2():
    of = tokenizers.decoders
    parts = [of.Replace("▁", " "), of.ByteFallback(), of.Fuse(), of.Strip(" ", 1, 0)]
    return with_fallback(of.Sequence(parts))


def metaspace():
    of = tokenizers.decoders
    return with_fallback(of.Sequence([of.ByteFallback(), of.Metaspace(prepend_scheme="never")]))


@pytest.mark.parametrize("make", [by_bytes, llama_2, metaspace])
def test_bytes_of_all_tokens_are_the_text(make):
    tokenizer = make()
    bytes_of = bytes_of_tokens(tokenizer)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        joined = b"".join(bytes_of(i) for i in ids).decode()
        assert joined.replace("\u2581", " ") == text.replace("\u2581", " ")
        assert joined == text or make is not by_bytes  # others have one name for both


@pytest.mark.parametrize("make", [by_bytes, llama_2, metaspace])
def test_a_token_of_half_a_character_has_its_own_bytes(make):
    tokenizer = make()
    ids = tokenizer.encode(HALF, add_special_tokens=False)
    found = [bytes_of_tokens(tokenizer)(i) for i in ids]
    assert found == [bytes([byte]) for byte in HALF.encode()]
    assert all("\ufffd" in tokenizer.decode([i]) for i in ids)


@pytest.mark.parametrize("make", [by_bytes, llama_2])
def test_marks_are_their_texts_and_no_row_is_no_token(make):
    tokenizer = make()
    bytes_of = bytes_of_tokens(tokenizer)
    marks = ["<|end|>", "<｜begin▁of▁text｜>"]
    assert [bytes_of(tokenizer.convert_tokens_to_ids(each)).decode() for each in marks] == marks
    assert bytes_of(len(tokenizer)) is None and bytes_of(-1) is None


def test_what_a_decoder_makes_of_neighbours_is_not_known():
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({"a": 0, "##b": 1}, unk_token="a"))
    for decoder in (tokenizers.decoders.WordPiece(), tokenizers.decoders.CTC(), None):
        if decoder is not None:
            made.decoder = decoder
        assert bytes_of_tokens(marked(made))(0) is None


def test_bytes_are_tokens():
    tokenizer = open_tokenizer(data())
    assert [tokenizer.bytes_of(i) for i in (0, 0xE2, 255)] == [b"\x00", b"\xe2", b"\xff"]
    assert tokenizer.bytes_of(ByteTokenizer.END) == b"<end>"
    assert tokenizer.bytes_of(300) is None and tokenizer.bytes_of(-1) is None
