"""Which requests an engine takes. The rest are refused before anything of them is held.

A response may have several turns: runs of tokens in turn sampled and given. Its last run is what
an engine goes on from: sampled tokens of a turn that is not over, or given ones that begin a turn.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.messages import GenerateRequest, unpack_tokens
from rlboost_jax.sequences.sequence import BadSequence, runs_after_prompt
from rlboost_jax.sequences.shared_limits import MAX_STOP_IDS
from rlboost_jax.sequences.stop_table import stop_table
from rlboost_jax.sequences.transcript import Transcript

_UINT32 = 2**32


class EngineBusy(RuntimeError):
    """The call does not fit between `begin` and `finish`, or needs an engine without rollouts."""


class RequestRejected(ValueError):
    """The request cannot be run by this engine; the message says what to change."""


class RequestTooLong(RequestRejected):
    """Prompt and longest response do not fit in a slot."""


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Limits of the requests an engine can run."""

    vocab_size: int
    slot_tokens: int  # longest prompt plus response, given tokens included
    truncated_sampling: bool


def check_request(request: GenerateRequest, limits: EngineLimits, *, version: int | None) -> None:
    """Raise `RequestRejected`, or `RequestTooLong`, unless the engine can run the request.

    Args:
        version: policy version that the engine holds, if any.
    """
    name = f"request {request.request_id}"
    if version is None or request.version != version:
        holds = "no version" if version is None else f"version {version}"
        _reject(name, f"is for version {request.version} and the engine holds {holds}; load it")
    work = request.work
    numbers = {"request_id": request.request_id, "batch": work.batch, "sample": work.sample}
    for field, value in (numbers | {"seed": work.seed}).items():
        if not 0 <= value < _UINT32:
            _reject(name, f"has {field} {value}; it must be from 0 to {_UINT32 - 1}")
    _check_sampling(name, request, limits)
    _check_tokens(name, request, limits)


def checked_texts(
    texts: Iterable[tuple[bytes, bytes]], limits: EngineLimits
) -> dict[bytes, list[bytes]]:
    """Gather earlier responses by their prompts.

    Raises `RequestRejected` if one cannot be a text for drafts.
    """
    responses: dict[bytes, list[bytes]] = {}
    for prompt, text in texts:
        if len(text) % 4:
            _reject("texts:", f"one has {len(text)} bytes; a token is 4 bytes")
        if (foreign := _foreign(unpack_tokens(text), limits)) is not None:
            most = limits.vocab_size
            _reject("texts:", f"one has token id {foreign}; model.vocab_size is {most}")
        responses.setdefault(prompt, []).append(text)
    return responses


def _foreign(tokens: NDArray[np.int32], limits: EngineLimits) -> int | None:
    """The first token id that is none of the model's; None: all are."""
    outside = tokens[(tokens < 0) | (tokens >= limits.vocab_size)]
    return int(outside[0]) if len(outside) else None


def transcript_of(request: GenerateRequest) -> Transcript:
    """Return the tokens of a request. Raises BadSequence if its runs do not add up to them."""
    runs = runs_after_prompt(request.runs, len(request.response_tokens) // 4)
    return Transcript.from_runs(request.prompt_tokens, request.response_tokens, runs)


def _check_sampling(name: str, request: GenerateRequest, limits: EngineLimits) -> None:
    sampling = request.sampling
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        _reject(name, f"has temperature {sampling.temperature}; it must be 0 (greedy) or positive")
    if not 0 < sampling.top_p <= 1:
        _reject(name, f"has top_p {sampling.top_p}; it must be above 0 and at most 1")
    if not 0 <= sampling.top_k < 2**31:
        _reject(name, f"has top_k {sampling.top_k}; it must be 0 (all) or positive")
    if sampling.max_tokens < 1:
        _reject(name, f"has max_tokens {sampling.max_tokens}; it must be at least 1")
    cut = sampling.top_p < 1 or sampling.top_k > 0
    if cut and sampling.temperature > 0 and not limits.truncated_sampling:
        _reject(
            name,
            f"has top_p {sampling.top_p} and top_k {sampling.top_k}, but the engine was built "
            "with truncated_sampling off; set sampling.top_p and sampling.top_k, or those of "
            "evaluation, in the configuration",
        )
    if sampling.turn_tokens < 0:
        _reject(name, f"has turn_tokens {sampling.turn_tokens}; it must be 0 (no limit) or more")
    if len(sampling.stop_ids) > MAX_STOP_IDS:
        _reject(name, f"has {len(sampling.stop_ids)} stop ids; at most {MAX_STOP_IDS} are held")
    for stop in sampling.stop_ids:
        if not 0 <= stop < limits.vocab_size:
            _reject(name, f"has stop id {stop}; model.vocab_size is {limits.vocab_size}")


def _check_tokens(name: str, request: GenerateRequest, limits: EngineLimits) -> None:
    for field in ("prompt_tokens", "response_tokens"):
        data = getattr(request, field)
        if len(data) % 4:
            _reject(name, f"has {len(data)} bytes of {field}; a token is 4 bytes")
        if (foreign := _foreign(unpack_tokens(data), limits)) is not None:
            _reject(
                name,
                f"has token id {foreign} in {field}; model.vocab_size is {limits.vocab_size}",
            )
    prompt = len(request.prompt_tokens) // 4
    if prompt == 0:
        _reject(name, "has an empty prompt; it needs at least 1 token")
    try:
        transcript = transcript_of(request)
    except BadSequence as error:
        _reject(name, f"has {error} of response_tokens")
    given, sampled = transcript.num_given, transcript.num_sampled
    longest = transcript.length - sampled + request.sampling.max_tokens
    if longest > limits.slot_tokens:
        of_others = f"{given} given since, " if given else ""
        raise RequestTooLong(
            f"{name} may reach {longest} tokens ({prompt} of prompt, {of_others}"
            f"{request.sampling.max_tokens} of response); a slot holds {limits.slot_tokens}: "
            "raise engine.max_prompt_tokens or lower sampling.max_response_tokens"
        )
    stopped = _stops_of_open_turns(transcript, request.sampling.stop_ids)
    most = request.sampling.max_tokens
    if stopped or sampled >= most:
        why = f"has stop id {min(stopped)} in" if stopped else f"already has {sampled} of"
        _reject(
            name,
            f"{why} its response of at most {most} tokens; a finished response is not continued",
        )
    if _has_stop_string(transcript, request.sampling.stops):
        _reject(name, "has a stop string in its response; a finished response is not continued")
    if (room := transcript.room(request.sampling)) <= 0:
        most = request.sampling.turn_tokens
        _reject(
            name,
            f"already has {most - room} tokens of a turn of at most {most}; "
            "a turn that is over is not continued",
        )


def _has_stop_string(transcript: Transcript, stops: bytes) -> bool:
    """Whether a stop string was sampled, other than at the end of an answered turn."""
    for turn in transcript.turns():
        tokens = unpack_tokens(turn.sampled)
        end = stop_table(stops).end(tokens, len(tokens))
        if end is not None and (turn.given is None or end < len(tokens)):
            return True
    return False


def _stops_of_open_turns(transcript: Transcript, stop_ids: Collection[int]) -> set[int]:
    """Stop ids that were sampled, other than at the end of an answered turn."""
    found: set[int] = set()
    for turn in transcript.turns():
        tokens = unpack_tokens(turn.sampled)
        found.update(tokens[: len(tokens) - (turn.given is not None)].tolist())
    return found.intersection(stop_ids)


def _reject(name: str, why: str) -> NoReturn:
    raise RequestRejected(f"{name} {why}")
