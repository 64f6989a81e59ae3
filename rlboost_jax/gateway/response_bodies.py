"""Responses for a turn on the wire: OpenAI's chat completions, verifiers' generate.

Log-probabilities are float32 as the engine recorded them. JSON carries them as the shortest number
that reads back as the same, so a client has them bit for bit.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rlboost_jax.gateway.backend import Model, TurnPiece
from rlboost_jax.gateway.client_calls import Call, ChatCall, TokenCall
from rlboost_jax.gateway.gateway_session import AnsweredTurn, SampledTurn

TokenText = Callable[[int], str | None]
TokenBytes = Callable[[int], bytes | None]
DONE: Final = b"data: [DONE]\n\n"


class ChatAnswer:
    """Response to one call of chat completions, whole or in chunks.

    Args:
        created: Unix seconds.
        text_of: of a token.
        bytes_of: of a token.
    """

    def __init__(
        self,
        call: ChatCall,
        *,
        session: str,
        turn: int,
        model: Model,
        created: int,
        text_of: TokenText,
        bytes_of: TokenBytes,
    ) -> None:
        self._call, self._text_of, self._bytes_of = call, text_of, bytes_of
        self._model = model
        self._head = {
            "id": f"chatcmpl-{session}-{turn}",
            "created": created,
            "model": call.model or model.name,
        }
        self._sent = ""  # text, in chunks
        self._sent_tokens = 0

    def whole(self, answered: AnsweredTurn) -> dict[str, Any]:
        turn = answered.sampled
        message: dict[str, Any] = {
            "role": "assistant",
            "content": turn.text if turn.text or not turn.calls else None,
            "refusal": None,
        }
        if turn.thinking:
            message["reasoning_content"] = turn.thinking
        if turn.calls:
            message["tool_calls"] = list(tool_calls(turn))
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(turn.tokens, turn.logprobs),
            "finish_reason": finish_of(turn),
        }
        body = {**self._head, "object": "chat.completion", "choices": [choice]}
        if self._call.return_token_ids:
            choice["token_ids"] = list(turn.tokens)
            body["prompt_token_ids"] = _listed(turn.prompt)
        return {**body, "usage": usage_of(turn), "rlboost": note(answered, self._call, self._model)}

    def first(self) -> bytes:
        """Chunk that a stream begins with."""
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, piece: TurnPiece) -> bytes:
        """Chunk of some tokens; b"" if it would be empty."""
        self._sent += piece.text
        self._sent_tokens += len(piece.tokens)
        logprobs = self._logprobs(piece.tokens, piece.logprobs)
        ids = list(piece.tokens) if self._call.return_token_ids else None
        if not piece.text and logprobs is None and ids is None:
            return b""
        return self._chunk({"content": piece.text}, logprobs=logprobs, ids=ids)

    def rest(self, answered: AnsweredTurn) -> Iterator[bytes]:
        """Remaining chunks once the turn is complete, up to the end mark."""
        turn = answered.sampled
        if turn.thinking:
            yield self._chunk({"reasoning_content": turn.thinking})
        left, logprobs = turn.tokens[self._sent_tokens :], turn.logprobs[self._sent_tokens :]
        # A backend is certain of the text it has let go of: the turn's begins with it.
        if not turn.text.startswith(self._sent):
            yield event(
                {"error": {"message": "the text changed as it ended", "type": "server_error"}}
            )
            return
        text = turn.text[len(self._sent) :]
        if text or left:
            ids = list(left) if self._call.return_token_ids else None
            yield self._chunk({"content": text}, logprobs=self._logprobs(left, logprobs), ids=ids)
        for index, call in enumerate(tool_calls(turn)):
            function = call["function"]
            begun = {"name": function["name"], "arguments": ""}
            yield self._chunk({"tool_calls": [{"index": index, **call, "function": begun}]})
            arguments = {"index": index, "function": {"arguments": function["arguments"]}}
            yield self._chunk({"tool_calls": [arguments]})
        yield self._chunk(
            {}, finish=finish_of(turn), note=note(answered, self._call, self._model), turn=turn
        )
        if self._call.include_usage:
            usage = {**self._head, "object": "chat.completion.chunk", "choices": []}
            yield event({**usage, "usage": usage_of(turn)})
        yield DONE

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
        ids: list[int] | None = None,
        note: dict[str, Any] | None = None,
        turn: SampledTurn | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        body = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if ids is not None:
            choice["token_ids"] = ids
        if turn is not None and self._call.return_token_ids:
            body["prompt_token_ids"] = _listed(turn.prompt)
        if note is not None:
            body["rlboost"] = note
        return event(body)

    def _logprobs(self, tokens: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any] | None:
        if not self._call.logprobs or len(logprobs) != len(tokens):
            return None
        content = []
        for token, logprob in zip(tokens, logprobs, strict=True):
            entry = self._entry(token, logprob)
            alternatives = [entry] if self._call.top_logprobs else []
            content.append({**entry, "top_logprobs": alternatives})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        """Entry of OpenAI's list of log-probabilities.

        A token that is half a character has its own bytes, and U+FFFD as its text.
        """
        text = own = None
        if not self._call.tokens_as_ids:
            own = self._bytes_of(token)
            text = self._text_of(token) if own is None else own.decode(errors="replace")
        return {
            "token": f"token_id:{token}" if text is None else text,
            "logprob": logprob,
            "bytes": None if own is None else list(own),
        }


def generated(
    call: TokenCall, answered: AnsweredTurn, *, session: str, model: Model
) -> dict[str, Any]:
    """Response of verifiers' generate endpoint: each token by its id."""
    turn = answered.sampled
    entries: list[Any] = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(turn.tokens, turn.logprobs, strict=True)
    ]
    body: dict[str, Any] = {
        "request_id": f"{session}-{answered.turn}",
        "model": call.model or model.name,
        "choices": [
            {
                "index": 0,
                "token_ids": list(turn.tokens),
                "logprobs": {"content": entries},
                "finish_reason": turn.finish,
            }
        ],
        "usage": usage_of(turn),
        "rlboost": note(answered, call, model),
    }
    if call.return_token_ids:
        body["prompt_token_ids"] = list(call.tokens)
    return body


def models(model: Model, created: int) -> dict[str, Any]:
    """Response of `/v1/models`."""
    card: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "rlboost-jax",
        "root": model.name,
        "parent": None,
    }
    if model.max_tokens:
        card["max_model_len"] = model.max_tokens
    return {"object": "list", "data": [card]}


def finish_of(turn: SampledTurn) -> str:
    return "tool_calls" if turn.calls and turn.finish == "stop" else turn.finish


def tool_calls(turn: SampledTurn) -> Iterator[dict[str, Any]]:
    for call in turn.calls:
        function = {"name": call.name, "arguments": call.arguments}
        yield {"id": call.id, "type": "function", "function": function}


def usage_of(turn: SampledTurn) -> dict[str, Any] | None:
    if turn.prompt is None:
        return None
    before, sampled = len(turn.prompt), len(turn.tokens)
    return {
        "prompt_tokens": before,
        "completion_tokens": sampled,
        "total_tokens": before + sampled,
    }


def note(answered: AnsweredTurn, call: Call, model: Model) -> dict[str, Any]:
    """Fields that OpenAI's protocol does not have."""
    turn = answered.sampled
    passed_over = call.sampled_with if model.own_sampling else ()
    return {
        "turn": answered.turn,
        "sequence": turn.sequence,
        "version": turn.version,
        "ignored": list(dict.fromkeys((*call.ignored, *passed_over))),
    }


def event(body: dict[str, Any]) -> bytes:
    """Encode a server-sent event. JSON has no line break within it."""
    return b"data: " + encoded(body) + b"\n\n"


def encoded(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()  # ASCII: half a pair is escaped


def _listed(tokens: Sequence[int] | None) -> list[int] | None:
    return None if tokens is None else list(tokens)
