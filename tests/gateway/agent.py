"""A command-line agent that knows nothing of this project: it counts down with a tool.

    OPENAI_BASE_URL=… OPENAI_API_KEY=… python agent.py --turns=10 "What is 3 + 4?"

Each turn it tells the policy how long its answer was and what a tool said, and goes on. It prints
one JSON object: how many turns there were. Only the standard library is used.
"""

import argparse
import json
import os
import sys
import urllib.request

TOOL = {
    "type": "function",
    "function": {
        "name": "length",
        "description": "Length of a text.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}


def complete(messages: list, model: str) -> dict:
    body = {"model": model, "messages": messages, "tools": [TOOL], "max_tokens": 24}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["choices"][0]["message"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("question", nargs="?", default="")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--model", default="")
    parser.add_argument("--sum-up", default="", help="after a turn, if the question has it")
    options = parser.parse_args()
    question = options.question
    if not question:  # of the example of a run
        question = json.loads(os.environ["RLBOOST_EXAMPLE"])["question"]
    messages = [{"role": "user", "content": question}]
    for turn in range(options.turns):
        if options.sum_up and options.sum_up in question and turn == 1:
            messages = [{"role": "user", "content": f"{question} You spoke once."}]
        said = complete(messages, options.model)
        messages.append(said)
        for call in said.get("tool_calls") or []:
            answer = {"role": "tool", "tool_call_id": call["id"], "content": "no such length"}
            messages.append(answer)
        content = said.get("content") or ""
        messages.append({"role": "user", "content": f"{turn}: {len(content)} characters."})
    print(json.dumps({"turns": options.turns}))
    return 0


def reward(example: dict, messages: list) -> float:
    """Reward of an episode: the share of answers without a letter e."""
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    return sum("e" not in text for text in said) / max(1, len(said))


if __name__ == "__main__":
    sys.exit(main())
