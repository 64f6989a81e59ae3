"""Calls of clients: checked, and in one form.

Three kinds of fields: those that are followed, those that would change what is asked for and are
refused, and all others, which are ignored and named in the answer.
"""

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rlboost_jax.environments.protocol import Message
from rlboost_jax.gateway.api_errors import invalid
from rlboost_jax.gateway.chat_messages import canonical_messages, canonical_tools
from rlboost_jax.gateway.gateway_limits import MAX_STOP_CHARS, MAX_STOPS
from rlboost_jax.gateway.refused_fields import FIXED, refuse
from rlboost_jax.gateway.unread import UNSET, unread, unread_of_messages, unread_of_tools
from rlboost_jax.sequences.shared_limits import MAX_STOP_IDS

# Fields of chat completions that are followed. `top_logprobs` has the sampled token only.
_TURN: Final = ("n", "max_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids")
_CHAT: Final = frozenset(
    (
        *_TURN,
        *("messages", "model", "tools", "tool_choice", "parallel_tool_calls", "stream"),
        *("stream_options", "logprobs", "top_logprobs", "return_token_ids"),
        *("return_tokens_as_token_ids", "max_completion_tokens", "response_format"),
    )
)
_SAMPLING: Final = frozenset(
    (*_TURN, "logprobs", "skip_special_tokens", "routed_experts_prompt_start")
)


@dataclass(frozen=True, kw_only=True)
class CallSampling:
    """Sampling settings of a call; None: the gateway's own."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ChatCall:
    """A call of chat completions."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    sampling: CallSampling
    model: str = ""
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    return_token_ids: bool = False
    tokens_as_ids: bool = False  # "token_id:5" in place of text
    parallel_tool_calls: bool = True  # False: its client gets the first call of a turn alone
    ignored: tuple[str, ...] = ()
    sampled_with: tuple[str, ...] = ()  # fields that say something of its sampling

    @property
    def key(self) -> str:
        """Key that is equal for calls that ask for the same turn."""
        sampling = msgspec.to_builtins(self.sampling)
        return _digest("chat", self.messages, self.tools, sampling, self.parallel_tool_calls)


@dataclass(frozen=True, kw_only=True)
class TokenCall:
    """A call of verifiers' generate endpoint: token ids in, token ids out."""

    tokens: tuple[int, ...]
    sampling: CallSampling
    model: str = ""
    return_token_ids: bool = False
    ignored: tuple[str, ...] = ()
    sampled_with: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return _digest("tokens", self.tokens, msgspec.to_builtins(self.sampling))


Call = ChatCall | TokenCall


def chat_call(value: Mapping[str, Any]) -> ChatCall:
    """Decode a call of chat completions. Raises ApiError."""
    refuse(value)
    kind = value.get("response_format")
    if kind is not None and (not isinstance(kind, dict) or kind.get("type") != "text"):
        raise invalid("response_format can be text only", "response_format")
    tools = canonical_tools(value.get("tools"))
    choice = value.get("tool_choice")
    if choice == "none":
        tools = ()
    elif choice not in (*UNSET, "auto"):
        raise invalid(
            "tool_choice can be auto or none: what is sampled is not constrained", "tool_choice"
        )
    top = _integer(value, "top_logprobs", 0, 20)
    options = value.get("stream_options") or {}
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", "stream_options")
    stream, logprobs = _flag(value, "stream"), _flag(value, "logprobs")
    parallel = value.get("parallel_tool_calls")
    ignored = (
        *_ignored(value, _CHAT),
        *(["top_logprobs"] if top and (top > 1 or not logprobs) else ()),
        *(["max_tokens"] if _differ(value, "max_tokens", "max_completion_tokens") else ()),
        *(["stream_options"] if options and not stream else ()),
        *unread(options, ("include_usage",), "stream_options."),
        *unread_of_messages(value.get("messages")),
        *unread_of_tools(value.get("tools")),
    )
    return ChatCall(
        messages=canonical_messages(value.get("messages")),
        tools=tools,
        sampling=_sampling(value),
        model=_word(value, "model"),
        stream=stream,
        include_usage=_flag(options, "include_usage"),
        logprobs=logprobs,
        top_logprobs=min(1, top or 0),
        return_token_ids=_flag(value, "return_token_ids"),
        tokens_as_ids=_flag(value, "return_tokens_as_token_ids"),
        parallel_tool_calls=parallel is None or _flag(value, "parallel_tool_calls"),
        ignored=ignored,
        sampled_with=_sampled_with(value),
    )


def token_call(value: Mapping[str, Any]) -> TokenCall:
    """Decode a call of the generate endpoint. Raises ApiError."""
    sampling = value.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise invalid("sampling_params must be an object", "sampling_params")
    refuse(value)
    refuse(sampling)
    if _flag(value, "stream"):
        raise invalid("token calls are not streamed; leave stream out", "stream")
    tokens = value.get("token_ids")
    if not isinstance(tokens, list) or not tokens:
        raise invalid("token_ids must be a list of at least one id", "token_ids")
    known = ("token_ids", "sampling_params", "model", "stream", "return_token_ids")
    unknown = unread(sampling, (*_SAMPLING, *FIXED), "sampling_params.")
    return TokenCall(
        tokens=_ids(tokens, "token_ids"),
        sampling=_sampling(sampling),
        model=_word(value, "model"),
        return_token_ids=_flag(value, "return_token_ids"),
        ignored=_ignored(value, known) + unknown,
        sampled_with=_sampled_with(sampling, "sampling_params."),
    )


def reward_of(value: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """Decode reward and metrics that are posted for a session. Raises ApiError."""
    reward = _worth(value.get("reward"), "reward", 1e9)
    if reward is None:
        raise invalid("reward must be a number", "reward")
    metrics = value.get("metrics") or {}
    if not isinstance(metrics, dict) or len(metrics) > 100:
        raise invalid("metrics must be an object of at most 100 numbers", "metrics")
    found = {}
    for name in metrics:
        place = f"metrics.{name[:100]}"
        number = _worth(metrics[name], place, 1e12)
        if number is None or len(name) > 100:
            raise invalid(f"{place} must be a number", "metrics")
        found[name] = number
    return reward, found


def _worth(given: Any, place: str, most: float) -> float | None:
    """Decode a reward or a metric: a number, or a bool."""
    given = float(given) if isinstance(given, bool) else given
    return _number({place: given}, place, -most, most)


def _ignored(value: Mapping[str, Any], known: Collection[str]) -> tuple[str, ...]:
    return unread(value, (*known, *FIXED))


def _sampled_with(value: Mapping[str, Any], place: str = "") -> tuple[str, ...]:
    names = (*_TURN, "max_completion_tokens")
    return tuple(f"{place}{name}" for name in names if name != "n" and value.get(name) not in UNSET)


def _differ(value: Mapping[str, Any], one: str, other: str) -> bool:
    given = value.get(one), value.get(other)
    return None not in given and given[0] != given[1]


def _sampling(value: Mapping[str, Any]) -> CallSampling:
    longest = _integer(value, "max_completion_tokens", 1, 2**31 - 1)
    if longest is None:
        longest = _integer(value, "max_tokens", 1, 2**31 - 1)
    top_k = _integer(value, "top_k", -1, 2**31 - 1)
    stop = value.get("stop")
    stops = [] if stop in UNSET else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise invalid("stop must be text or a list of texts", "stop")
    if len(stops) > MAX_STOPS or any(not 0 < len(each) <= MAX_STOP_CHARS for each in stops):
        raise invalid(
            f"stop has {len(stops)} texts; at most {MAX_STOPS} of 1 to {MAX_STOP_CHARS} "
            "characters are taken",
            "stop",
        )
    stop_ids = value.get("stop_token_ids")
    if stop_ids is not None:
        stop_ids = tuple(sorted(set(_ids(stop_ids, "stop_token_ids"))))
        if len(stop_ids) > MAX_STOP_IDS:
            raise invalid(
                f"stop_token_ids has {len(stop_ids)} ids; at most {MAX_STOP_IDS} are held",
                "stop_token_ids",
            )
    return CallSampling(
        temperature=_number(value, "temperature", 0.0, 100.0),
        top_p=_number(value, "top_p", 1e-9, 1.0),
        top_k=max(0, top_k) if top_k is not None else None,
        max_tokens=longest,
        stop=tuple(stops),
        stop_ids=stop_ids or None,
    )


def _ids(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise invalid(f"{name} must be a list of ids", name)
    for each in value:
        if type(each) is not int or not 0 <= each < 2**31:
            raise invalid(f"{name} has {str(each)[:40]}; ids are whole numbers from 0 on", name)
    return tuple(value)


def _number(value: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    given = value.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise invalid(f"{name} is {str(given)[:40]!r}; it must be a number", name)
    if not least <= given <= most or not math.isfinite(given):
        raise invalid(f"{name} is {str(given)[:40]}; it must be from {least:g} to {most:g}", name)
    return float(given)


def _integer(value: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    given = value.get(name)
    if given is None:
        return None
    if isinstance(given, float) and given.is_integer():  # JSON has one kind of numbers
        given = int(given)
    if type(given) is not int or not least <= given <= most:
        raise invalid(
            f"{name} is {str(given)[:40]!r}; it must be a whole number from {least} to {most}", name
        )
    return given


def _flag(value: Mapping[str, Any], name: str) -> bool:
    given = value.get(name)
    if given is None:
        return False
    if not isinstance(given, bool):
        raise invalid(f"{name} is {str(given)[:40]!r}; it must be true or false", name)
    return given


def _word(value: Mapping[str, Any], name: str) -> str:
    given = value.get(name)
    if given is None:
        return ""
    if not isinstance(given, str):
        raise invalid(f"{name} is {str(given)[:40]!r}; it must be text", name)
    return given[:200]


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=list)
    return hashlib.sha256(text.encode()).hexdigest()
