"""A trainer whose responses may use a calculator once: `python -m tests.system.calculator`.

    python -m tests.system.calculator -- --config=… --workdir=…

is `rlboost_jax.main` with an environment of two turns: it adds up the digits that the policy wrote
in its first, and says the sum. A first turn without digits is the whole response.

`<workdir>.answers` has a line for each answer: the number of tokens given. With `--held=BATCH`
before the `--` it does not answer in that batch before there is a file `<workdir>.go`; it has been
asked once there is `<workdir>.asked`.
"""

import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import app
from numpy.typing import NDArray

from rlboost_jax import main as product
from rlboost_jax import messages
from rlboost_jax.data.vocabulary import EQUALS, digit
from rlboost_jax.learner import training
from rlboost_jax.learner.answers import Answers, Environment
from rlboost_jax.learner.makers import Makers
from rlboost_jax.settings.command_line import parse

LOOK_SECONDS = 0.01


def calculate(tokens: NDArray[np.int32]) -> tuple[Sequence[int], bool]:
    """`= sum =` of the digits of a turn; nothing, and that is all, without any."""
    zero = digit(0)
    digits = tokens[(tokens >= zero) & (tokens < zero + 10)] - zero
    if not len(digits):
        return (), True
    return (EQUALS, *(digit(int(d)) for d in str(int(digits.sum()))), EQUALS), False


def noting(path: Path, tokens: NDArray[np.int32]) -> tuple[Sequence[int], bool]:
    """The same, with a line for each."""
    given, over = calculate(tokens)
    with path.open("a") as file:
        file.write(f"{len(given)}\n")
    return given, over


def hold(batch: int, workdir: Path) -> None:
    """Do not answer in a batch before somebody lets it."""
    real = Answers.take

    def take(self: Answers, parked: messages.Parked) -> None:
        if parked.work.batch == batch:
            beside(workdir, "asked").touch()
            while not beside(workdir, "go").exists():
                time.sleep(LOOK_SECONDS)
        real(self, parked)

    Answers.take = take  # type: ignore[method-assign]


def beside(workdir: Path, name: str) -> Path:
    return workdir.with_name(f"{workdir.name}.{name}")


if __name__ == "__main__":
    split = sys.argv.index("--")
    options, sys.argv[1:] = sys.argv[1:split], sys.argv[split + 1 :]
    (folder,) = [a.partition("=")[2] for a in sys.argv if a.startswith("--workdir=")]
    for option in options:
        hold(int(option.removeprefix("--held=")), Path(folder))
    answer = functools.partial(noting, beside(Path(folder), "answers"))
    makers = Makers(environment=Environment(turns=2, answer=answer))
    training.run_training = functools.partial(training.run_training, makers=makers)
    app.run(product.main, flags_parser=parse)
