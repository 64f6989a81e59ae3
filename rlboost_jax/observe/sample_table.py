"""The sample table of a report: what the policy answered at first and what it answers now."""

import html
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from rlboost_jax.observe.samples import shortened

LETTERS: Final = 6_000  # of a prompt and of a response


def sample_section(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of the first and of the newest step that has any, a table for each prompt.

    "" where there is none. All text is escaped: a model may write anything.
    """
    if not rows:
        return ""
    shown = sorted({rows[0]["step"], rows[-1]["step"]})
    groups = [
        _group(step, list(members))
        for step in shown
        for _, members in groupby(
            (row for row in rows if row["step"] == step), key=lambda row: row["prompt"]
        )
    ]
    return (
        "<section><h2>Samples</h2><p class='caption'>Whole groups of the first prompts of step "
        f"{' and of step '.join(map(str, shown))}; samples.jsonl has those in between.</p>"
        f"{''.join(groups)}</section>"
    )


def _group(step: int, rows: Sequence[Mapping[str, Any]]) -> str:
    parts = list(dict.fromkeys(name for row in rows for name in row.get("rewards", {})))
    titles = ("reward", *parts, "advantage", "tokens", "response")
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(_row(row, parts) for row in rows)
    prompt = _text(rows[0]["prompt_text"])
    return (
        f"<div class='samples'><div class='what'>step {step}, prompt {rows[0]['prompt']}</div>"
        f"<pre class='prompt'>{prompt}</pre><table><tr>{head}</tr>{body}</table></div>"
    )


def _row(row: Mapping[str, Any], parts: Sequence[str]) -> str:
    rewards = [row["reward"], *(row["rewards"].get(name) for name in parts)]
    numbers = [*map(_number, rewards), _number(row["advantage"], sign="+")]
    cells = "".join(f"<td class='value'>{number}</td>" for number in numbers)
    length = f"{row['tokens']:,}" + ("<br>cut off" if row["cut_off"] else "")
    turns = row.get("turns") or [("sampled", row["response_text"])]  # none in files of before
    response = "".join(map(_turn, turns))
    return f"<tr>{cells}<td class='value'>{length}</td><td>{response}</td></tr>"


def _turn(turn: Sequence[str]) -> str:
    origin, text = turn
    given = " class='prompt'" if origin == "given" else ""  # looks like what else was given
    return f"<pre{given}>{_text(text)}</pre>"


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.3g}"


def _text(text: str) -> str:
    return html.escape(shortened(text, LETTERS))
