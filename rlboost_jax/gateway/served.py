"""Sessions of an engine in this process: a checkpoint, or a run's, that is served, not trained.

A session's noise is named by its id: the same conversation in a session of the same id, on an
engine of the same fingerprint, repeats bit for bit, whatever else is sampled.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlboost_jax.chat.conversation import ParsedTurn
from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.data.tokenizers import Tokenizer
from rlboost_jax.engine.requests import RequestRejected
from rlboost_jax.environments.protocol import Message
from rlboost_jax.gateway.api_errors import failed, invalid
from rlboost_jax.gateway.backend import Model, TurnPiece
from rlboost_jax.gateway.client_calls import Call, ChatCall
from rlboost_jax.gateway.context import Chat, Context, ahead_of, check_length, room_for
from rlboost_jax.gateway.engine_thread import EngineFailed, EngineThread, RequestYield, TokenStream
from rlboost_jax.gateway.gateway_session import Ask, Called, Finish, SampledTurn
from rlboost_jax.gateway.stops import before_stop, certain, stopped_after
from rlboost_jax.messages import GenerateRequest, Sampling
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.sequences.identities import Batch, Version, Work

_UINT32: Final = 2**32
_LOOKS: Final = 16  # at a turn's text, as often as it doubles, while it is streamed


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Policy that is served.

    Attributes:
        sampling: what calls do not say otherwise; its `max_tokens` is of no meaning here.
        turn_tokens: that may be sampled in one turn; 0: what fits the slot.
    """

    name: str
    version: Version
    seed: int
    slot_tokens: int
    sampling: Sampling
    turn_tokens: int = 0


class EngineBackend:
    """Backend of an engine in this process.

    Args:
        chat: the model's conversations.
        tokenizer: of the same.
    """

    def __init__(
        self, thread: EngineThread, policy: Policy, chat: Chat, tokenizer: Tokenizer
    ) -> None:
        self._thread, self._policy = thread, policy
        self._chat, self._tokenizer = chat, tokenizer
        self._contexts: dict[str, Context] = {}
        self._requests = 0
        self.stop_texts = tokenizer.stop_strings.strings  # of any call
        self.model = Model(name=policy.name, max_tokens=policy.slot_tokens)

    async def turn(self, session: str, ask: Ask) -> AsyncIterator[TurnPiece | SampledTurn]:
        call = ask.call
        check_length(call, self._policy.slot_tokens)
        try:
            context = ahead_of(self._contexts.get(session), ask, self._chat)
        except ChatRefused as error:
            raise invalid(f"the chat template refuses the messages: {error}", "messages") from None
        request = self._request(session, context, call)
        turn = _Turn(self, call, request.sampling)
        try:
            stream = self._thread.begin(request)
        except EngineFailed as error:
            raise failed(str(error)) from None
        last = False
        try:
            while not (last or turn.ended_by_text):
                found = await _next(stream)
                last = found.last
                yield turn.take(found)
        finally:
            if not last:  # a stop text, or nobody waits for it any more
                self._thread.cancel(request.request_id)
        sampled = turn.sampled(context, self._policy.version)
        self._contexts[session] = context.with_sampled(sampled.tokens, turn.parsed)
        yield sampled

    async def opened(self, session: str) -> Mapping[str, Any]:
        return {}

    async def ended(
        self, session: str, reward: float | None, metrics: Mapping[str, float], reason: str
    ) -> None:
        self._contexts.pop(session, None)

    def token_text(self, token: int) -> str | None:
        return self._tokenizer.text([token])

    def token_bytes(self, token: int) -> bytes | None:
        return self._tokenizer.bytes_of(token)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens)

    def parse(self, tokens: Sequence[int]) -> ParsedTurn:
        return self._chat.parse(tokens)

    def _request(self, session: str, context: Context, call: Call) -> GenerateRequest:
        policy, asked = self._policy, call.sampling
        room = room_for(
            context, policy.slot_tokens, asked=asked.max_tokens, most=policy.turn_tokens
        )
        self._requests = (self._requests + 1) % _UINT32
        own, transcript = policy.sampling, context.transcript
        return GenerateRequest(
            request_id=self._requests,
            work=Work(
                seed=policy.seed,
                batch=Batch(policy.version),
                prompt=0,
                sample=number_of(session),
                sequence=context.number,
            ),
            version=policy.version,
            prompt_tokens=transcript.prompt,
            response_tokens=bytes(transcript.tokens),
            runs=transcript.runs,
            sampling=Sampling(
                temperature=own.temperature if asked.temperature is None else asked.temperature,
                top_p=own.top_p if asked.top_p is None else asked.top_p,
                top_k=own.top_k if asked.top_k is None else asked.top_k,
                max_tokens=transcript.num_sampled + room,
                stop_ids=asked.stop_ids or own.stop_ids,
                stops=own.stops,
            ),
        )


class _Turn:
    """A turn being sampled: its tokens and its text so far."""

    def __init__(self, served: EngineBackend, call: Call, sampling: Sampling) -> None:
        self._served, self._call, self._sampling = served, call, sampling
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._shown, self._look = "", 1
        self.ended_by_text = False
        self.parsed: ParsedTurn

    def take(self, found: RequestYield) -> TurnPiece:
        """Add tokens, up to a stop text. Returns the piece that can be shown."""
        tokens, logprobs, stops = found.tokens, found.logprobs, self._call.sampling.stop
        self._tokens += tokens
        self._logprobs += logprobs
        end = stopped_after(self._tokens, len(tokens), stops, self._served.decode)
        if end is not None:
            left = len(tokens) - (len(self._tokens) - end)
            tokens, logprobs = tokens[:left], logprobs[:left]
            del self._tokens[end:], self._logprobs[end:]
            self.ended_by_text = True
        return TurnPiece(tokens=tokens, logprobs=logprobs, text=self._new_text())

    def sampled(self, context: Context, version: Version) -> SampledTurn:
        tokens, call = tuple(self._tokens), self._call
        self.parsed = turn = self._served.parse(tokens)
        text = before_stop(turn.text, call.sampling.stop)
        if not text.startswith(self._shown):
            text = self._shown  # such as before a stray end of thinking: what was streamed is said
        finish: Finish = "length"
        ends = self._sampling
        if self.ended_by_text or stopped(tokens, ends.stop_ids, ends.stops):
            finish = "stop"
        calls = tuple(
            Called(
                id=each.id or f"call_{context.transcript.length}_{index}",
                name=each.name,
                arguments=json.dumps(dict(each.arguments)),
            )
            for index, each in enumerate(turn.calls)
            if not each.problem
        )
        calls = asked_for(call, calls)
        chat = isinstance(call, ChatCall)
        return SampledTurn(
            tokens=tokens,
            logprobs=tuple(self._logprobs),
            finish=finish,
            text=text,
            thinking=turn.thinking,
            calls=calls,
            message=message_of(text, turn.thinking, calls) if chat else None,
            prompt=context.tokens,
            sequence=context.number,
            version=version,
        )

    def _new_text(self) -> str:
        """Text that may be streamed. With tools, none before the turn is over: it may be a call."""
        call = self._call
        if not isinstance(call, ChatCall) or not call.stream or call.tools:
            return ""
        if len(self._tokens) < self._look:
            return ""
        self._look = len(self._tokens) + max(1, len(self._tokens) // _LOOKS)
        turn = self._served.parse(self._tokens)
        if turn.thinking or turn.calls:
            return ""
        text = certain(turn.text, (*call.sampling.stop, *self._served.stop_texts))
        if not text.startswith(self._shown):
            return ""
        new, self._shown = text[len(self._shown) :], text
        return new


def asked_for(call: Call, calls: tuple[Called, ...]) -> tuple[Called, ...]:
    """Calls of a turn that its client gets: only the first if it takes no more."""
    return calls if not isinstance(call, ChatCall) or call.parallel_tool_calls else calls[:1]


def message_of(text: str, thinking: str, calls: Sequence[Called]) -> Message:
    """Turn as a message of the conversation, in the form its client sends back."""
    message = Message(role="assistant", content=text)
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return message


def number_of(session: str) -> int:
    """Number that names a session's noise: 32 bits of its id's digest."""
    return int.from_bytes(hashlib.sha256(session.encode()).digest()[:4], "little")


async def _next(stream: TokenStream) -> RequestYield:
    found = await stream.queue.get()
    if isinstance(found, RequestRejected):
        raise invalid(str(found))
    if isinstance(found, Exception):
        raise failed(str(found))
    return found
