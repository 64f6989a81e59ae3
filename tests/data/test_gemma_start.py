"""Questions of `make gemma` have one answer, and the test asks for words that training has not."""

import importlib.util
import json
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "make_gemma_start.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_gemma_start", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_questions_have_one_answer_and_no_word_is_on_both_sides(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "put_model", lambda folder, given: folder / tool.MODEL)
    kind_of = {word: kind for kind, words in tool.KINDS.items() for word in words.split()}
    assert len(kind_of) == sum(len(words.split()) for words in tool.KINDS.values())

    tool.main([f"--to={tmp_path}", "--train=400", "--test=100"])
    seen = {}
    for side, count in (("train", 400), ("test", 100)):
        rows = [json.loads(line) for line in (tmp_path / f"{side}.jsonl").read_text().splitlines()]
        assert len({row["question"] for row in rows}) == count
        seen[side] = set()
        for row in rows:
            example, _, question = row["question"].partition("\n")
            words, _, asked = question.removesuffix(" is").partition(": the ")
            words = words.split(", ")
            assert len(words) == tool.CHOICES
            assert [f"{word}." for word in words if kind_of[word] == asked] == [row["answer"]]
            assert not kind_of.keys() & set(example.replace(",", "").split())
            seen[side] |= set(words)
    assert not seen["train"] & seen["test"]
    assert seen["train"] | seen["test"] == kind_of.keys()


def test_another_file_is_refused(tool, tmp_path):
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(SystemExit, match="is not the file expected"):
        tool.put_model(tmp_path, tmp_path / "other.gguf")
