"""Held-out accuracy with greedy decoding, on an engine that has nothing else to do."""

from collections.abc import Sequence

import numpy as np

from rlboost_jax.data.exercises import Exercises, Prompt
from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens


def greedy_accuracy(
    engine: Engine, exercises: Exercises, prompts: Sequence[Prompt], *, max_tokens: int
) -> float:
    """Mean of the first reward function over greedy answers.

    The engine must hold a version and no requests; it holds none afterwards.
    """
    if engine.version is None:
        raise ValueError("the engine holds no parameters; call load first")
    sampling = Sampling(
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        max_tokens=max_tokens,
        stop_ids=tuple(exercises.stop_ids),
    )
    engine.submit(
        [
            GenerateRequest(
                request_id=index,
                step=0,
                prompt=index,
                sample=index,
                version=engine.version,
                seed=0,
                prompt_tokens=pack_tokens(prompt.tokens),
                response_tokens=b"",
                sampling=sampling,
            )
            for index, prompt in enumerate(prompts)
        ]
    )
    responses: list[list[int]] = [[] for _ in prompts]
    for dispatch in engine.run():
        ends = np.cumsum(dispatch.counts, dtype=np.int64)
        for index, count, end in zip(dispatch.request_ids, dispatch.counts, ends, strict=True):
            responses[index].extend(dispatch.tokens[end - count : end].tolist())
    asked = [
        exercises.ask(prompt, np.array(response, np.int32))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    return float(np.mean([verdict.result().accuracy for verdict in asked]))
