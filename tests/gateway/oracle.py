"""What an engine of its own samples for an episode: the second derivation of a gateway's turns.

It knows nothing of sessions, HTTP or chat templates: it is given the token ids before each turn,
and checks that they are all that came before and what was added.
"""

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from rlboost_jax.configs import base
from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.sequences.identities import Work
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_fields, source_folder
from rlboost_jax.settings.model_config import ModelConfig

SEED, STOPS = 5, (0, 2)
Turn = tuple[Sequence[int], Sequence[int], Sequence[float]]  # before it, sampled, log-probabilities


@functools.cache
def engine_of(checkpoint: Path, slot_tokens: int) -> Engine:
    """Make an engine with other slots, rows and pages than the gateway's, which cannot show."""
    dtype = base.get_config().model.dtype
    model = ModelConfig(source=str(checkpoint), dtype=dtype, **source_fields(str(checkpoint)))
    config = EngineConfig(slots=3, page_size=8, max_prompt_tokens=slot_tokens // 2)
    engine = Engine(model, config, slot_tokens=slot_tokens, truncated_sampling=True)
    engine.load(read_checkpoint(model, source_folder(str(checkpoint), WEIGHTS)), 0)
    return engine


def assert_engine_samples(
    engine: Engine,
    session: str,
    turns: Sequence[Turn],
    *,
    most: int,
    temperature: float = 1.0,
    stops: Sequence[int] = STOPS,
    sequence: int = 0,
) -> None:
    """Each turn of an episode, bit for bit.

    Args:
        most: tokens that each may have.
    """
    sample = int.from_bytes(hashlib.sha256(session.encode()).digest()[:4], "little")
    prompt = list(turns[0][0])
    response: list[int] = []
    runs: list[int] = []
    for number, (before, tokens, logprobs) in enumerate(turns):
        known = [*prompt, *response]
        assert list(before[: len(known)]) == known, f"turn {number} re-tokenised what was said"
        if given := list(before[len(known) :]):
            response += given
            runs.append(len(given))
        sampled = sum(runs[::2])
        engine.submit(
            [
                GenerateRequest(
                    request_id=7,
                    work=Work(
                        seed=SEED,
                        batch=0,
                        prompt=0,
                        sample=sample,
                        sequence=sequence,
                    ),
                    version=0,
                    prompt_tokens=pack_tokens(prompt),
                    response_tokens=pack_tokens(response),
                    runs=tuple(runs),
                    sampling=Sampling(
                        temperature=temperature,
                        top_p=1.0,
                        top_k=0,
                        max_tokens=sampled + most,
                        stop_ids=tuple(stops),
                    ),
                )
            ]
        )
        expected: list[int] = []
        expected_logprobs: list[float] = []
        for dispatch in engine.run():
            expected += dispatch.tokens.tolist()
            expected_logprobs += dispatch.logprobs.tolist()
        assert list(tokens) == expected, f"turn {number}"
        assert list(logprobs) == expected_logprobs, f"turn {number}"  # of float32, exactly
        response += expected
        runs.append(len(expected))
