"""Decode steps that drafts save where responses have 1,500 tokens and more.

    python -m benchmarks.long_responses [--prompts=8] [--slots=8] [--rows=32] [--updates=300]

The task is the quickstart's clock with a long way: a digit is added again and again, and each time
the response says how many times are left, in two tokens, and where the hand points, in one. A model
of the quickstart's size, but with windows of 64 tokens, is trained for half a minute on the first
lines of worked answers, and then samples 8 responses to each prompt as in `benchmarks.speculation`.
It makes mistakes, which its siblings do not make: from there on few drafts are right. The first
responses have none at all, so it matters how many responses come to a slot.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import replace

import jax
import msgspec
import numpy as np

from benchmarks.speculation import begin_of, both, measure
from configs import quickstart
from rlboost_jax.data.vocabulary import ANSWER, BEGIN, END, EQUALS, counter, digit
from rlboost_jax.learner.setup.lessons import taught
from rlboost_jax.learner.setup.warmup import warm_up
from rlboost_jax.messages import PromptRequest, pack_tokens
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.speculation_config import SpeculationConfig

UNITS = 96  # as many as the vocabulary has counters
LINES = (500, 560)  # of three tokens
TAUGHT = 40  # of these in a lesson
MOST_PROMPTS = 64  # beyond these come lessons


class LongClock:
    """Lessons, and prompts."""

    name = "long clock"

    def prompt(self, index: int, least: int = LINES[0]) -> tuple[list[int], Iterator[int]]:
        """Tokens of a prompt and of its worked answer, of at least so many lines."""
        random = np.random.default_rng([index, 7])
        start, step = random.integers(10), random.integers(1, 4)
        count = random.integers(least, LINES[1])
        question = [BEGIN, digit(start), digit(step), *_number(count), EQUALS]

        def answer() -> Iterator[int]:
            for k in range(1, count + 1):
                yield from (*_number(count - k), digit((start + step * k) % 10))
            yield from (ANSWER, digit((start + step * count) % 10), END)

        return question, answer()

    def lesson(self, index: int, rng: np.random.Generator, *, worked: bool) -> Sequence:
        question, answer = self.prompt(MOST_PROMPTS + index, 1)
        first = [*itertools.islice(answer, 3 * TAUGHT)]
        return taught([np.array(question, np.int32), np.array(first, np.int32)])


def _number(value: int) -> tuple[int, int]:
    return digit(int(value) // UNITS), counter(int(value) % UNITS)


def config_for(updates: int, prompts: int) -> RunConfig:
    config = quickstart.get_config()
    config.model.sliding_window, config.model.attention_pattern = 64, "L"
    config.warmup.max_updates = updates
    config.warmup.target_loss = 0.005
    config.warmup.worked_fraction = 1.0
    config.warmup.habit_updates = 0
    config.sampling.max_response_tokens = 3 * LINES[1] + 3
    config.sampling.noise = "tree"
    config.learner.prompts_per_step = prompts
    config.learner.micro_batch_prompts = 1
    return run_config(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=8, choices=range(1, MOST_PROMPTS))
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rows", type=int, default=32, help="of each step; 0: as the CPU's engine")
    parser.add_argument("--updates", type=int, default=300, help="of the training, at most")
    parser.add_argument("--drafters", default=",".join(SpeculationConfig().drafters))
    options = parser.parse_args()
    run, clock = config_for(options.updates, options.prompts), LongClock()
    short = replace(run, learner=replace(run.learner, row_tokens=3 * TAUGHT + 6))

    def report(update: int, loss: float) -> None:
        if update % 40 == 0:
            print(f"update {update}: {loss:.3f} nats a token", flush=True)

    params = warm_up(
        short, clock, init_params(run.model, run.seed), mesh=make_mesh((1, 1, 1)), report=report
    )
    prompts = tuple(
        PromptRequest(prompt=place, tokens=pack_tokens(clock.prompt(place)[0]))
        for place in range(options.prompts)
    )
    begin = msgspec.structs.replace(begin_of(run, 1), prompts=prompts)
    runs, fleets = both(run, options.drafters.split(","), options.slots, options.rows, 1)
    print(measure(runs, fleets, jax.device_get(params), begin), flush=True)


if __name__ == "__main__":
    main()
