"""Index of the groups in `samples.jsonl`, so that a page reads only those it shows."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlboost_jax.observe.json_lines import decoded
from rlboost_jax.observe.page.file_tail import FileTail
from rlboost_jax.observe.samples import parts_read, shortened

MOST_GROUPS: Final = 2_000  # known; of more the oldest are left out
HEAD_LETTERS: Final = 100  # of a prompt, in the list
LETTERS: Final = 20_000  # of a prompt and of a response
MOST_ROWS: Final = 256  # of a group
MOST_PARTS: Final = 400  # of a response
RESPONSE: Final = "response_text"
SEARCHED_BYTES: Final = 2**26  # of the newest


@dataclass
class SampleGroup:
    """Responses to a prompt of a step: their list entry, and where they are in the file."""

    step: int
    prompt: int
    head: str
    digest: str  # of the prompt's text: the same prompt of another step has the same
    places: list[tuple[int, int]] = field(default_factory=list)  # offset, length
    best: float | None = None
    total: float = 0.0
    known: int = 0  # responses whose reward is a number
    cut_off: int = 0

    @property
    def id(self) -> str:
        return f"{self.step}-{self.prompt}"

    def entry(self) -> dict[str, Any]:
        """Entry of the list."""
        return {
            "id": self.id,
            "step": self.step,
            "prompt": self.prompt,
            "head": self.head,
            "digest": self.digest,
            "responses": len(self.places),
            "mean": self.total / self.known if self.known else None,
            "best": self.best,
            "cut_off": self.cut_off,
        }

    def take(self, row: Mapping[str, Any], place: tuple[int, int]) -> None:
        self.places.append(place)
        self.cut_off += bool(row.get("cut_off"))
        reward = row.get("reward")
        if isinstance(reward, int | float):
            self.best = reward if self.best is None else max(self.best, reward)
            self.total += reward
            self.known += 1


class SampleIndex:
    """Index of one file. To be used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = FileTail(path)
        self._groups: OrderedDict[str, SampleGroup] = OrderedDict()

    def poll(self) -> None:
        """Read what is new."""
        while True:
            replaced = self._tail.replaced
            lines = self._tail.lines()
            if self._tail.replaced != replaced:
                self._groups.clear()
            for offset, line in lines:
                self._take(offset, line)
            if not lines or not self._tail.behind:
                return

    def entries(self, words: str = "") -> list[dict[str, Any]]:
        """Entries of groups, newest first; with `words`, of groups whose texts have them."""
        self.poll()
        newest = list(reversed(self._groups.values()))
        if words:
            newest = self._with(newest, words.casefold())
        return [group.entry() for group in newest]

    def group(self, name: str) -> dict[str, Any] | None:
        """A group with its texts; None where there is none of that id."""
        self.poll()
        group = self._groups.get(name)
        return None if group is None else {**group.entry(), **group_texts(self._read(group))}

    def _take(self, offset: int, line: bytes) -> None:
        row = decoded(line)
        if row is None or not isinstance(row.get("step"), int):
            return
        prompt = str(row.get("prompt_text", ""))
        name = f"{row['step']}-{row.get('prompt', 0)}"
        if name not in self._groups:
            self._groups[name] = group_of(row, prompt)
            if len(self._groups) > MOST_GROUPS:
                self._groups.popitem(last=False)
        group = self._groups[name]
        if len(group.places) < MOST_ROWS:
            group.take(row, (offset, len(line)))

    def _with(self, groups: Sequence[SampleGroup], words: str) -> list[SampleGroup]:
        found, left = [], SEARCHED_BYTES
        for group in groups:
            left -= sum(length for _, length in group.places)
            if left < 0:
                break
            rows = self._read(group)
            texts = (str(row.get(key, "")) for row in rows for key in ("prompt_text", RESPONSE))
            if any(words in text.casefold() for text in texts):
                found.append(group)
        return found

    def _read(self, group: SampleGroup) -> list[dict[str, Any]]:
        rows = []
        try:
            with open(self._path, "rb") as file:
                for offset, length in group.places:
                    file.seek(offset)
                    if (row := decoded(file.read(length))) is not None:
                        rows.append(row)
        except OSError:
            return []
        return rows


def group_of(row: Mapping[str, Any], prompt: str) -> SampleGroup:
    """Empty group for rows like this one."""
    return SampleGroup(
        step=row["step"],
        prompt=int(row.get("prompt", 0)),
        head=" ".join(prompt.split())[:HEAD_LETTERS],
        digest=hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16],
    )


def group_texts(rows: Sequence[Mapping[str, Any]], letters: int = LETTERS) -> dict[str, Any]:
    """The prompt and the rows of a group, long texts shortened in the middle."""
    prompt = str(rows[0].get("prompt_text", "")) if rows else ""
    return {"prompt_text": shortened(prompt, letters), "rows": [_row(r, letters) for r in rows]}


def _row(row: Mapping[str, Any], letters: int) -> dict[str, Any]:
    shown = {key: row.get(key) for key in ("sample", "tokens", "cut_off", "reward", "advantage")}
    parts = parts_read(row)[:MOST_PARTS]
    return {
        **shown,
        RESPONSE: shortened(str(row.get(RESPONSE, "")), letters),
        "rewards": row.get("rewards") or {},
        "turns": [{**part, "text": shortened(part["text"], letters)} for part in parts],
        "trained": row.get("trained", True),
        "left_out": str(row.get("left_out") or ""),
    }
