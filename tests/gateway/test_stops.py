"""What of a turn's text is certain before it is over."""

from collections.abc import Sequence
from random import Random

import pytest

from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.data.tokenizers import ByteTokenizer
from rlboost_jax.gateway.stops import before_stop, certain, stopped_after
from rlboost_jax.settings.data_config import DataConfig

TOKENIZER = ByteTokenizer(DataConfig())
CHAT = conversation_of(TOKENIZER)
PARTS = (
    *(
        "a",
        " ",
        "\n",
        "ä",
        "数",
        "stop",
        "sto",
        "<think>",
        "<think>b</think>",
        "<tool_call>",
        "{",
        "}",
    ),
    *('{"name": "f", "arguments": {}}', "</tool_call>", "<", "```", "\ufffd", "</"),
)


def turns(seed: int) -> Sequence[int]:
    random = Random(seed)
    text = "".join(random.choices(PARTS, k=random.randint(0, 12)))
    tokens = list(text.encode())
    if random.random() < 0.3 and tokens:
        tokens = tokens[: random.randrange(len(tokens))]
    return [*tokens, *([ByteTokenizer.END] if random.random() < 0.7 else [])]


@pytest.mark.parametrize("stops", [(), ("stop",), ("top ", "a")])
def test_what_is_streamed_is_the_beginning_of_what_is_said(stops: tuple[str, ...]) -> None:
    """Token by token, of what marks, half characters and stop texts are mixed in.

    An end of thinking that never began turns all before it into thinking: what was streamed of it
    is then what is said (`served.py`).
    """
    shown = 0
    for seed in range(1500):
        tokens = turns(seed)
        for end in range(1, len(tokens) + 1):
            if (cut := stopped_after(tokens[:end], 1, stops, TOKENIZER.decode)) is not None:
                tokens = tokens[:cut]
                break
        whole = CHAT.parse(tokens)
        said = before_stop(whole.text, stops)
        for end in range(1, len(tokens) + 1):
            part = CHAT.parse(tokens[:end])
            if part.thinking or part.calls:
                continue
            text = certain(part.text, stops)
            assert said.startswith(text), f"{seed}: {text!r} of {said!r}"
            shown += len(text)
    assert shown > 1000


def test_a_stop_text_ends_a_turn_with_the_token_that_completes_it() -> None:
    tokens = list(b"one stop two")
    assert stopped_after(tokens, len(tokens), ("stop",), TOKENIZER.decode) == len("one stop")
    assert stopped_after(tokens, 3, ("stop",), TOKENIZER.decode) is not None  # looked at too late
    assert stopped_after(tokens[:7], 7, ("stop",), TOKENIZER.decode) is None
    assert stopped_after(tokens, len(tokens), (), TOKENIZER.decode) is None
    assert before_stop("one stop two stop", ("two", "stop")) == "one "


def test_a_stop_text_of_several_bytes_a_character() -> None:
    tokens = list("ab数学cd".encode())
    end = stopped_after(tokens, len(tokens), ("数学",), TOKENIZER.decode)
    assert end == len("ab数学".encode())
