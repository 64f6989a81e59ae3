"""Play an environment: you are the policy.

    rlboost play --config=my_run.py
    rlboost play --config=my_run.py --example=3 --seed=7 < turns.txt

Shows what the policy reads, and takes a line for each turn (`\\n` in it is a new line) until the
episode is done or the lines are. Tools are called as in a run. Without a tokenizer a turn is words
of the small vocabulary, such as `5 [12] # 7`.
"""

import asyncio
import functools
import json
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from rlboost_jax import exits
from rlboost_jax.data import vocabulary
from rlboost_jax.data.tokenizers import Tokenizer, open_tokenizer
from rlboost_jax.environments.exercises import Numbers, RowsOf, seed_of
from rlboost_jax.environments.factories import check_made, maker_of
from rlboost_jax.environments.frames import ToolSpec
from rlboost_jax.environments.observations import is_empty
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.environments.runner import EnvironmentFailed, EpisodeRunner, RememberedCalls
from rlboost_jax.environments.speech import Speech, Unspeakable, messages_of, speech_of
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.settings.command_line import parse
from rlboost_jax.settings.data_presets import resolved
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.load import run_config
from rlboost_jax.settings.run import RunConfig
from rlboost_jax.settings.task_sizes import DATASET, VOCAB_SIZE

_CONFIG = config_flags.DEFINE_config_file("config", None, "Configuration file.", lock_config=True)
_EXAMPLE = flags.DEFINE_string(
    "example", "0", "Number of a training example, or a JSON object in place of one."
)
_SEED = flags.DEFINE_integer("seed", None, "Of the episode; the run's own if not given.")


class Player:
    """An episode in this process. Raises ConfigError, when made, for what no run could use."""

    def __init__(self, run: RunConfig) -> None:
        if not run.environment.name:
            raise ConfigError("environment.name is ''; name the environment to play")
        data, _ = resolved(run)
        self._run = run
        self._tokenizer = open_tokenizer(data) if data.tokenizer else None
        make = maker_of(run.environment.name, run.environment.options)
        check_made(run.environment.name, make())
        self._runner = EpisodeRunner(
            make,
            ledger=RememberedCalls(),
            time_limit_seconds=run.environment.time_limit_seconds,
        )

    async def lines(self, example: Any, seed: int, turns: Iterable[str]) -> AsyncIterator[str]:
        """What there is to show, as it comes.

        Raises:
            EnvironmentFailed, Unspeakable: as it would in a run.
        """
        runner = self._runner
        observation = await runner.reset(example, seed)
        tools = _described(runner)
        speech = speech_of(self._run, tools)
        prompt = speech.first(observation, tools)
        yield f"prompt, {len(prompt)} tokens:\n{speech.text(prompt)}"
        before, total, count = [*messages_of(observation)], 0.0, 0
        most = self._run.environment.max_turns
        for index, typed in zip(range(most), turns, strict=False):
            tokens = encoded(typed.replace("\\n", "\n"), self._tokenizer, speech)
            heard = speech.heard(tokens)
            finish = "stop" if stopped(tokens, speech.stop_ids) else "length"
            turn = Turn(
                index=index,
                tokens=tokens,
                text=heard.text,
                thinking=heard.thinking,
                calls=heard.calls,
                finish=finish,  # type: ignore[arg-type]
            )
            done = await runner.step(turn, key=f"turn-{index}")
            for result in done.turn.results:
                call, failed = result.call, " (failed)" * result.failed
                yield f"{call.name}({json.dumps(dict(call.arguments))}){failed}: {result.content}"
            step = done.step
            total, count = total + step.reward, index + 1
            if step.reward or step.metrics:
                yield f"reward {step.reward:g} {dict(step.metrics) or ''}".rstrip()
            if step.done:
                yield f"done after {count} turns; reward {total:g}"
                break
            if step.anew:
                tools, before = _described(runner), [*messages_of(step.observation)]
                prompt = speech.first(step.observation, tools)
                yield f"another sequence, {len(prompt)} tokens:\n{speech.text(prompt)}"
                continue
            said = speech.after(before, heard, done.turn.results, step.observation, tools)
            if not len(said.given) and not len(said.prompt) and is_empty(step.observation):
                raise EnvironmentFailed("it said nothing, and not that the episode is done")
            before += said.messages
            if len(said.prompt):
                yield f"another sequence, {len(said.prompt)} tokens:\n{speech.text(said.prompt)}"
            else:
                yield f"given, {len(said.given)} tokens:\n{speech.text(said.given)}"
        else:
            yield f"not done after {count} turns; reward so far {total:g}"
        await runner.close()


def _described(runner: EpisodeRunner) -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(name=t.name, description=t.description, parameters=dict(t.parameters))
        for t in runner.tools.values()
    )


def encoded(text: str, tokenizer: Tokenizer | None, speech: Speech) -> tuple[int, ...]:
    """A turn as the policy would have sampled it, with the token that ends it.

    Raises:
        ConfigError: a word is none of the vocabulary.
    """
    if tokenizer is not None:
        (ids,) = tokenizer.encode([text], chat=True)
        return (*ids, speech.stop_ids[0])
    words = {vocabulary.text([token]): token for token in range(VOCAB_SIZE)}
    unknown = [word for word in text.split() if word not in words]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is no word; there are digits, [0] to [95], and "
            f"{' '.join(vocabulary.MARKS)}"
        )
    ids = [words[word] for word in text.split()]
    return tuple(ids) if stopped(ids, speech.stop_ids) else (*ids, speech.stop_ids[0])


def example_of(run: RunConfig, given: str) -> Any:
    """By its number among those that are trained on, or as it stands. Raises ConfigError."""
    if not given.isdecimal():
        try:
            example = json.loads(given)
        except ValueError:
            example = None
        if not isinstance(example, dict):
            raise ConfigError(f"--example={given}; give a number, or a JSON object")
        return example
    if run.task.name == DATASET:
        from rlboost_jax.data.dataset import Dataset

        dataset = Dataset(run)
        try:
            rows = RowsOf(dataset.train(run.seed))
            if int(given) >= len(rows):
                raise ConfigError(f"--example={given}; there are {len(rows)} to train on")
            return rows[int(given)][0]
        finally:
            dataset.close()
    return Numbers(2**31, heldout=False)[int(given)][0]


def typed() -> Iterator[str]:
    """Lines of the terminal, or of a file in its place."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line.rstrip("\n")


async def _show(player: Player, example: Any, seed: int) -> None:
    async for line in player.lines(example, seed, typed()):
        print(line, flush=True)


def main(argv: list[str]) -> None:
    try:
        if _CONFIG.value is None:
            raise ConfigError("no --config given; name the file of a run with an environment")
        run = run_config(_CONFIG.value)
        player, example = Player(run), example_of(run, _EXAMPLE.value)
        seed = seed_of(run.seed, example) if _SEED.value is None else _SEED.value
        asyncio.run(_show(player, example, seed))
    except (EnvironmentFailed, Unspeakable) as error:
        exits.leave(f"error: the environment failed: {error}", exits.MISTAKE)
    except (ConfigError, OSError) as error:
        exits.leave(f"error: {error}", exits.MISTAKE)
    except KeyboardInterrupt:
        exits.leave("interrupted", exits.by_signal(2))


if __name__ == "__main__":
    app.run(main, flags_parser=functools.partial(parse, command="play"))
