"""Text to token ids and back: bytes without any dependency, or a Hugging Face tokenizer."""

import functools
import keyword
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike

from rlboost_jax.data.chat_rendering import DATE, ChatRefused, rendered, values_of
from rlboost_jax.data.stop_strings import NO_STRINGS, StopStrings, strings_in
from rlboost_jax.data.token_bytes import bytes_of_tokens
from rlboost_jax.platform.bounded_files import Unreadable, check_size, explained
from rlboost_jax.platform.mistakes import ConfigError, install
from rlboost_jax.settings.data_config import DataConfig
from rlboost_jax.settings.huggingface.generation import end_ids, end_texts
from rlboost_jax.settings.huggingface.sources import CONFIG, TOKENIZER, source_folder

BYTES: Final = "bytes"
_SETTING: Final = "data.tokenizer"
MOST_BYTES: Final = 2**30  # of a file of a tokenizer's
_TODAY: Final = re.compile(r"strftime_now\(\s*(?P<quote>['\"])(?P<form>[^'\"]*)(?P=quote)\s*\)")
_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_NO_NAMES: Final = (*keyword.kwlist, "true", "false", "none")
_PROBE: Final = ["The answer is 42.", "数\n"]
Message = Mapping[str, Any]  # role, content, and what else a template takes


class Tokenizer(Protocol):
    vocab_size: int  # ids are below this
    stop_ids: tuple[int, ...]
    stop_strings: StopStrings  # end a response as `stop_ids` do
    end_id: int  # one of the stop ids: it ends a text that no chat template has written
    has_chat: bool  # whether `chat` has a template

    @property
    def template(self) -> str:
        """Text of the chat template; all of them if there are several, "" without any."""
        ...

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        generation: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Render a conversation up to where the policy speaks.

        Args:
            tools: as OpenAI's protocol has them.
            generation: up to where the policy speaks; False: up to the last message's end.
            options: what else the template takes, such as {"enable_thinking": False}.

        Raises:
            ChatRefused, or ConfigError where there is no template.
        """
        ...

    def encode(self, texts: Sequence[str], *, chat: bool) -> list[list[int]]:
        """Encode prompts as token ids.

        Args:
            chat: the text is from `chat` and has its special tokens in it.
        """
        ...

    def decode(self, tokens: ArrayLike, *, keep: Collection[int] = ()) -> str:
        """Decode without special tokens, except those to keep, as rewards read it."""
        ...

    @property
    def special(self) -> Mapping[str, int]:
        """Special tokens' texts, and their ids."""
        ...

    def text(self, tokens: ArrayLike) -> str:
        """Decode with special tokens, for people."""
        ...

    def bytes_of(self, token: int) -> bytes | None:
        """Bytes of one token, perhaps half a character; None if unknown."""
        ...


def open_tokenizer(data: DataConfig) -> Tokenizer:
    """Open the configured tokenizer. Raises ConfigError."""
    if data.tokenizer == BYTES:
        return ByteTokenizer(data)
    return HuggingFaceTokenizer(data)


class ByteTokenizer:
    """The bytes of UTF-8 are tokens 0 to 255; a beginning mark starts each prompt.

    The marks of roles are for conversations only (`chat/byte_conversation.py`): a run without them
    needs no more than `vocab_size` entries.
    """

    BEGIN: Final = 256
    END: Final = 257
    SYSTEM: Final = 258
    USER: Final = 259
    ASSISTANT: Final = 260
    TOOL: Final = 261
    MARKS: Final = {
        BEGIN: "<begin>",
        END: "<end>",
        SYSTEM: "<system>",
        USER: "<user>",
        ASSISTANT: "<assistant>",
        TOOL: "<tool>",
    }

    def __init__(self, data: DataConfig) -> None:
        self.vocab_size, self.end_id = 258, self.END
        self.stop_ids = tuple(sorted({self.END, *data.stop_ids}))
        self.stop_strings = StopStrings(data.stop_strings, [bytes([byte]) for byte in range(256)])
        self._template = data.chat_template
        self.has_chat = bool(data.chat_template)

    @property
    def template(self) -> str:
        return self._template

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        generation: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        if not self._template:
            raise ConfigError(
                "data.messages_column, tools_column or system_prompt needs a chat template, and "
                "the tokenizer 'bytes' has none; set data.chat_template"
            )
        given: dict[str, Any] = {"tools": list(tools)} if tools else {}
        given["add_generation_prompt"] = generation
        said = {"messages": [dict(message) for message in messages], **given, **options}
        return rendered(self._template, values_of(said), "data.chat_template")

    def encode(self, texts: Sequence[str], *, chat: bool) -> list[list[int]]:
        return [[self.BEGIN, *text.encode()] for text in texts]

    def decode(self, tokens: ArrayLike, *, keep: Collection[int] = ()) -> str:
        values = np.asarray(tokens).tolist()
        return self.text([v for v in values if 0 <= v < 256 or v in keep])

    @property
    def special(self) -> Mapping[str, int]:
        return {name: token for token, name in self.MARKS.items()}

    def text(self, tokens: ArrayLike) -> str:
        values = np.asarray(tokens).tolist()
        parts = [
            bytes([v]) if 0 <= v < 256 else self.MARKS.get(v, f"<{v}>").encode() for v in values
        ]
        return b"".join(parts).decode(errors="replace")

    def bytes_of(self, token: int) -> bytes | None:
        if 0 <= token < 256:
            return bytes([token])
        return self.MARKS[token].encode() if token in self.MARKS else None


class HuggingFaceTokenizer:
    """A folder with `tokenizer.json`, or a name on the hub, as AutoTokenizer takes them."""

    def __init__(self, data: DataConfig) -> None:
        try:
            import transformers
        except ImportError:
            line = f" {data.tokenizer!r} needs transformers; take 'bytes', or {install('hf')}"
            raise ConfigError(line, setting=_SETTING) from None
        folder = tokenizer_folder(data.tokenizer)
        _check_files(folder)
        try:
            # No program of a repository's is run here, and nobody is asked whether it may be.
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False
            )
            self._tokenizer(_PROBE)  # some faults show only then
            if not _is_template(self._tokenizer.chat_template):
                raise ValueError("its chat template is no text")
        except Exception as error:  # OSError, ValueError or whatever a broken file leads to
            why = str(error).partition("\n")[0]
            line = f" {data.tokenizer!r} cannot be loaded: {why}"
            raise ConfigError(line, setting=_SETTING) from None
        added = self._tokenizer.added_tokens_decoder  # they may lie behind a gap
        self.vocab_size = max(len(self._tokenizer), max(added, default=-1) + 1)
        end = self._tokenizer.eos_token_id
        found = {*data.stop_ids, *end_ids(folder), *([] if end is None else [int(end)])}
        if not found:
            raise ConfigError(
                f" {data.tokenizer!r} has no end token, so every response would run to its limit; "
                "set data.stop_ids",
                setting=_SETTING,
            )
        self.stop_ids = tuple(sorted(found))
        self.end_id = self.stop_ids[0] if end is None else int(end)
        strings = (*data.stop_strings, *end_texts(folder))
        self.stop_strings = strings_in(self, strings) if strings else NO_STRINGS
        self._tokenizer.chat_template = _with_a_date(self._tokenizer.chat_template)
        self._chat_template = _with_a_date(data.chat_template) or None
        self.has_chat = bool(data.chat_template or self._tokenizer.chat_template)
        own = next(filter(Path.is_file, (folder / name for name in _TEMPLATES)), folder)
        self._template_name = "data.chat_template" if data.chat_template else f"a template in {own}"

    @property
    def template(self) -> str:
        """Text of the chat template; all of them if there are several, "" without any."""
        known = self._chat_template or self._tokenizer.chat_template or ""
        return known if isinstance(known, str) else "\n".join(known.values())

    @property
    def vocabulary(self) -> dict[str, int]:
        """Ids of its tokens, without added ones."""
        added = set(self._tokenizer.added_tokens_decoder)
        return {t: int(i) for t, i in self._tokenizer.get_vocab().items() if i not in added}

    @property
    def added(self) -> dict[str, bool]:
        """Texts that are tokens wherever they stand, and whether each is special."""
        tokens = self._tokenizer.added_tokens_decoder.values()
        return {str(token.content): bool(token.special) for token in tokens}

    @property
    def response_parser(self) -> Callable[..., Mapping[str, Any]] | None:
        """`parse_response` of transformers, if the tokenizer has a template for it."""
        if getattr(self._tokenizer, "response_template", None) is None:
            return None
        parser: Callable[..., Mapping[str, Any]] = self._tokenizer.parse_response
        return parser

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        generation: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        if not self.has_chat:
            raise ConfigError(
                "the tokenizer has no chat template; set data.chat_template, or set "
                "data.chat to 'never'"
            )
        shown = [dict(tool) for tool in tools] or None
        try:
            template = self._tokenizer.get_chat_template(self._chat_template, shown)
            values = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=_given_to(self._tokenizer.special_tokens_map, options),
                tools=shown,
                tokenize=False,
                add_generation_prompt=generation,
                **options,
            )
        except Exception as error:  # whatever it makes of these messages
            raise ChatRefused(f"{type(error).__name__}: {error}") from None
        return rendered(template, values, self._template_name)

    def encode(self, texts: Sequence[str], *, chat: bool) -> list[list[int]]:
        if not texts:
            return []
        ids = self._tokenizer(list(texts), add_special_tokens=not chat)["input_ids"]
        end = self._tokenizer.eos_token_id  # which some put after every text
        return [i[:-1] if not chat and len(i) > 1 and i[-1] == end else list(i) for i in ids]

    def decode(self, tokens: ArrayLike, *, keep: Collection[int] = ()) -> str:
        ids = np.asarray(tokens).tolist()
        if not keep:
            return str(self._tokenizer.decode(ids, skip_special_tokens=True))
        dropped = set(self._tokenizer.all_special_ids).difference(keep)
        left = [token for token in ids if token not in dropped]
        return str(self._tokenizer.decode(left, skip_special_tokens=False))

    @property
    def special(self) -> Mapping[str, int]:
        names, ids = self._tokenizer.all_special_tokens, self._tokenizer.all_special_ids
        return {str(name): int(token) for name, token in zip(names, ids, strict=True)}

    def text(self, tokens: ArrayLike) -> str:
        ids = np.asarray(tokens).tolist()
        return str(self._tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def bytes_of(self, token: int) -> bytes | None:
        return self._bytes_of_tokens(token)

    @functools.cached_property
    def _bytes_of_tokens(self) -> Callable[[int], bytes | None]:
        return bytes_of_tokens(self._tokenizer)


def _given_to(*options: Mapping[str, Any]) -> str:
    """A template that writes all that transformers gives to one, as JSON: what it makes of
    messages, tools and its own tokens before a template sees them differs by release."""
    usual = ("messages", "tools", "documents", "add_generation_prompt")
    names = dict.fromkeys((*usual, *(name for each in options for name in each if _is_name(name))))
    return "{{ {" + ", ".join(f"'{name}': {name}" for name in names) + "} | tojson }}"


def _is_name(text: str) -> bool:
    """Whether a template could use this as a variable's name."""
    return text.isidentifier() and text not in _NO_NAMES


def _is_template(template: Any) -> bool:
    """Whether it is a text, texts by name, or None."""
    texts = template.values() if isinstance(template, dict) else [template or ""]
    return all(isinstance(text, str) for text in texts)


def _with_a_date(template: Any) -> Any:
    """A template that asks for today's date gets `DATE`: a run that goes on tomorrow has the
    prompts that it had."""
    if isinstance(template, dict):
        return {name: _with_a_date(text) for name, text in template.items()}
    return template and _TODAY.sub(lambda match: f"'{DATE.strftime(match['form'])}'", template)


def asks_for_today(template: str) -> bool:
    """Whether a template has the date in it, which is `DATE` in a run."""
    return bool(_TODAY.search(template))


def _check_files(folder: Path) -> None:
    """Raise ConfigError if a file that transformers would read is invalid or incomplete."""
    for path in sorted(path for name in (*TOKENIZER, CONFIG) for path in folder.glob(name)):
        if not path.is_dir():
            try:
                check_size(path, MOST_BYTES)
            except (OSError, Unreadable) as error:
                raise ConfigError(f": {explained(error)}", setting=_SETTING) from None


def tokenizer_folder(name: str) -> Path:
    """Folder of the tokenizer's files, fetched if need be. Raises ConfigError."""
    try:
        return source_folder(name, (*TOKENIZER, CONFIG))
    except ConfigError as error:
        raise error.under(_SETTING) from None
