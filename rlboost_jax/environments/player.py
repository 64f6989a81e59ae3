"""Play of an environment in this process: what its policy would read, and each turn's outcome.

Raises what a run would: nothing here is kept, tried again or left out.
"""

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from rlboost_jax.chat.conversation import Given, NewSequence
from rlboost_jax.data import vocabulary
from rlboost_jax.data.tokenizers import Tokenizer, open_tokenizer
from rlboost_jax.environments.episode_exercises import Numbers, RowsOf
from rlboost_jax.environments.factories import check_made, maker_of
from rlboost_jax.environments.observations import is_empty
from rlboost_jax.environments.prompt_renderer import (
    PromptRenderer,
    messages_of,
    renderer_of,
    turn_of,
)
from rlboost_jax.environments.runner import EnvironmentFailed, EpisodeRunner, RememberedCalls
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable
from rlboost_jax.platform.mistakes import ConfigError, plain
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.settings.data_presets import resolved
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.task_sizes import DATASET, VOCAB_SIZE


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
        """Yield the lines to show, as they come.

        Raises:
            EnvironmentFailed, UnencodableObservation: as it would in a run.
        """
        runner = self._runner
        observation = await runner.reset(example, seed)
        tools = runner.tool_specs
        renderer = renderer_of(self._run, tools)
        prompt = renderer.first(observation, tools)
        yield f"prompt, {len(prompt)} tokens:\n{renderer.text(prompt)}"
        before, total, count = [*messages_of(observation)], 0.0, 0
        most = self._run.environment.max_turns
        for index, typed in zip(range(most), turns, strict=False):
            tokens = encoded(typed.replace("\\n", "\n"), self._tokenizer, renderer)
            parsed = renderer.parse(tokens)
            turn = turn_of(index, tokens, parsed, renderer)
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
                tools, before = done.tools, [*messages_of(step.observation)]
                prompt = renderer.first(step.observation, tools)
                yield f"another sequence, {len(prompt)} tokens:\n{renderer.text(prompt)}"
                continue
            following, said = renderer.after(
                before, parsed, done.turn.results, step.observation, tools
            )
            before += said
            match following:
                case NewSequence(prompt):
                    yield f"another sequence, {len(prompt)} tokens:\n{renderer.text(prompt)}"
                case Given(given):
                    if not len(given) and is_empty(step.observation):
                        raise EnvironmentFailed("it said nothing, and not that the episode is done")
                    yield f"given, {len(given)} tokens:\n{renderer.text(given)}"
        else:
            yield f"not done after {count} turns; reward so far {total:g}"
        await runner.close()


def encoded(text: str, tokenizer: Tokenizer | None, renderer: PromptRenderer) -> tuple[int, ...]:
    """Encode a turn as the policy would have sampled it, with the token that ends it.

    Raises:
        ConfigError: a word is none of the vocabulary.
    """
    if tokenizer is not None:
        (ids,) = tokenizer.encode([text], chat=True)
        return (*ids, renderer.stop_ids[0])
    words = {vocabulary.text([token]): token for token in range(VOCAB_SIZE)}
    unknown = [word for word in text.split() if word not in words]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is no word; there are digits, [0] to [95], and "
            f"{' '.join(vocabulary.MARKS)}"
        )
    ids = [words[word] for word in text.split()]
    return tuple(ids) if stopped(ids, renderer.stop_ids) else (*ids, renderer.stop_ids[0])


def example_of(run: RunConfig, given: str) -> Any:
    """Example by its number among those for training, or as given. Raises ConfigError."""
    if not given.isdecimal():
        try:
            return foreign_json.decode(given, "--example", dict)
        except Unreadable as error:
            raise ConfigError(
                f"--example={plain(given)} {error.reason}; give a number, or a JSON object"
            ) from None
    if run.task.name == DATASET:
        from rlboost_jax.data.mixture import dataset_of

        dataset = dataset_of(run)
        try:
            rows = RowsOf(dataset.train(run.seed))
            if int(given) >= len(rows):
                raise ConfigError(f"--example={given}; there are {len(rows)} to train on")
            return rows[int(given)][0]
        finally:
            dataset.close()
    return Numbers(2**31, heldout=False)[int(given)][0]
