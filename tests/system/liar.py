"""A rollout server that lies: `python -m tests.system.liar KIND …`, else the options of
`python -m rlboost_jax.rollout`.

shift   every token id but one that ends a response is one higher than what was sampled
invent  log-probabilities are made up
stale   the first version is kept, whatever the server says that it has loaded

Or it tells the truth about tokens that it was free to choose, with its true weights:

constant   the noise of every token is 1/2
shifted    the noise is that of the next position
seldom     one token in twenty is chosen by noise 1/2, the others as they should be
heldout    greedy answers, which measure the policy, have the second likeliest token; no others do

The fingerprint that it shows is the one that the run wants to see: what it is computed from would
give some of them away.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from rlboost_jax.engine import row_sampling
from rlboost_jax.rollout import engine_worker, server


def shift(dispatch: Any, vocab_size: int, ends: tuple[int, ...]) -> Any:
    """Where responses end is left alone: one that seems to go on is soon missed."""
    shifted = (dispatch.tokens + 1) % vocab_size
    for _ in ends:
        shifted = np.where(np.isin(shifted, ends), (shifted + 1) % vocab_size, shifted)
    tokens = np.where(np.isin(dispatch.tokens, ends), dispatch.tokens, shifted)
    return dataclasses.replace(dispatch, tokens=tokens.astype(dispatch.tokens.dtype))


def invent(dispatch: Any, vocab_size: int, ends: tuple[int, ...]) -> Any:
    made_up = np.full_like(dispatch.logprobs, -np.log(vocab_size) / 2)
    return dataclasses.replace(dispatch, logprobs=made_up)


class Forger(engine_worker.EngineWorker):
    """Changes what the engine yields before it is sent."""

    forge: Any = None
    vocab_size = 0
    ends: tuple[int, ...] = ()

    def submit(self, requests: Any, params_digest: str) -> None:
        self.ends = requests[0].sampling.stop_ids
        super().submit(requests, params_digest)

    def _send(self) -> None:
        if self._unsent is not None:
            self._unsent = type(self).forge(self._unsent, self.vocab_size, self.ends)
        super()._send()


def prepared_engine(config: Any, **options: Any) -> Any:
    Forger.vocab_size = config.model.vocab_size
    return honest_engine(config, **options)


honest_engine = server.prepared_engine


def constant(keys: Any, positions: Any, kind: Any, **options: Any) -> Any:
    return jnp.full_like(honest_noise(keys, positions, kind, **options), 0.5)


def shifted(keys: Any, positions: Any, kind: Any, **options: Any) -> Any:
    return honest_noise(keys, positions + 1, kind, **options)


def seldom(keys: Any, positions: Any, kind: Any, **options: Any) -> Any:
    noise = honest_noise(keys, positions, kind, **options)
    now = (positions % 20 == 7).reshape(-1, *(1,) * (noise.ndim - 1))
    return jnp.where(now, 0.5, noise)


honest_noise = row_sampling.token_noise


def heldout(logits: Any, noise: Any, temperature: Any, *cuts: Any, **options: Any) -> Any:
    tokens, logprobs = honest_choice(logits, noise, temperature, *cuts, **options)
    second = jax.lax.top_k(logits, 2)[1][:, 1]
    return jnp.where(temperature == 0.0, second, tokens), logprobs


honest_choice = row_sampling.tokens_from_noise


class Laggard(engine_worker.EngineWorker):
    """Loads the first parameters again and again, under new names."""

    _first: Any = None

    def load(self, params: Any, version: int, params_digest: str) -> Any:
        if self._first is None:
            self._first = params
        return super().load(self._first, version, params_digest)


def copied(engine: Any, **options: Any) -> Any:
    """An introduction with the fingerprint of the run's own engine; any refusal names it, too."""
    (join,) = (Path(a.removeprefix("--join=")) for a in sys.argv if a.startswith("--join="))
    known = json.loads((join.parent / "fingerprints.json").read_text())["engines"]
    hello = honest_hello(engine, **options)
    return msgspec.structs.replace(hello, fingerprint=known[-1]["fingerprint"])


honest_hello = server.hello_of


def main(arguments: list[str]) -> int:
    kind, *rest = arguments
    server.hello_of = copied
    if forged := {"constant": constant, "shifted": shifted, "seldom": seldom}.get(kind):
        row_sampling.token_noise = forged  # type: ignore[assignment]
    elif kind == "heldout":
        row_sampling.tokens_from_noise = heldout
    elif kind == "stale":
        server.EngineWorker = Laggard  # type: ignore[misc]
    else:
        Forger.forge = staticmethod({"shift": shift, "invent": invent}[kind])
        server.EngineWorker = Forger  # type: ignore[misc]
        server.prepared_engine = prepared_engine
    return server.main(rest)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
