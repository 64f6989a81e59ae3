"""Recorded routes against a router in float64 that sees the whole sequence at once."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import msgspec
import numpy as np
import pytest

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.dispatches import EngineDispatch
from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import GenerateRequest, pack_tokens, unpack_tokens
from rlboost_jax.models.params import init_params
from rlboost_jax.sequences.stop_table import pack
from rlboost_jax.settings.routing import Routing
from rlboost_jax.settings.speculation_config import Drafter
from tests.engine.conftest import CONFIG, MODEL, SLOT_TOKENS, Oracle

MOE = replace(MODEL, num_experts=5, experts_per_token=2, expert_dim=12)
ROUTING = Routing(num_layers=2, num_experts=5, experts_per_token=2)
pytestmark = pytest.mark.optimized(False)  # choices are compared, which no rounding changes

Requests = Callable[..., GenerateRequest]
Recorded = dict[int, tuple[list[int], list[Any]]]  # by request: tokens, and routes


class RoutedOracle(Oracle):
    """Looks at the whole sequence for every token, and notes where the layers sent it."""

    def feed_forward(self, mlp: dict[str, Any], h: np.ndarray) -> np.ndarray:
        logits = h @ mlp["router"]["kernel"]
        chosen = np.argsort(-logits, axis=-1)[:, : MOE.experts_per_token]
        self.routes.append(chosen)
        out = np.zeros_like(h)
        for n, experts in enumerate(chosen):
            weights = np.exp(logits[n, experts] - logits[n].max())
            for e, weight in zip(experts, weights / weights.sum(), strict=True):
                gate, up = (h[n] @ mlp["experts"][name][e] for name in ("gate", "up"))
                inner = gate / (1 + np.exp(-gate)) * up
                out[n] += weight * (inner @ mlp["experts"]["down"][e])
        return out

    def routes_of(self, tokens: list[int]) -> np.ndarray:
        """Routes of every token but the last: [positions, layers, experts]."""
        self.routes: list[np.ndarray] = []
        self.logits(tokens[:-1])
        return np.stack(self.routes, axis=1)


@pytest.fixture(scope="module")
def moe_params() -> dict[str, Any]:
    fresh = jax.device_get(init_params(MOE, 0))
    return {**fresh, "head": {**fresh["head"], "kernel": 25 * fresh["head"]["kernel"]}}


@pytest.fixture(scope="module")
def engines(moe_params: dict[str, Any]) -> tuple[Engine, Engine]:
    """Make engines with pages for two long rollouts each, so that some are evicted.

    The second one verifies drafts in all decode steps.
    """

    def make(drafters: tuple[Drafter, ...]) -> Engine:
        engine = Engine(
            MOE,
            replace(CONFIG, num_pages=2 * SLOT_TOKENS // CONFIG.page_size),
            slot_tokens=SLOT_TOKENS,
            truncated_sampling=False,
            routing=ROUTING,
            drafters=drafters,
        )
        engine.load(moe_params, 1)
        return engine

    drafting = make(("siblings", "prompt"))
    drafting.drafts.wants = bool  # type: ignore[method-assign]
    return make(()), drafting


def take(dispatches: Iterable[EngineDispatch], recorded: Recorded) -> int:
    """Add what is yielded to what is there; returns the tokens run again after evictions."""
    again = 0
    for dispatch in dispatches:
        assert dispatch.routes is not None and dispatch.routes.dtype == np.uint8
        again += dispatch.prefilled_again
        start = first = 0
        for request_id, count, lead in zip(
            dispatch.request_ids.tolist(),
            dispatch.counts.tolist(),
            dispatch.leads.tolist(),
            strict=True,
        ):
            tokens, routes = recorded.setdefault(request_id, ([], []))
            tokens += dispatch.tokens[start : start + count].tolist()
            routes += dispatch.routes[first : first + lead + count].tolist()
            start, first = start + count, first + lead + count
        assert (start, first) == (len(dispatch.tokens), len(dispatch.routes))
    return again


def check(oracle: RoutedOracle, requests: list[GenerateRequest], recorded: Recorded) -> None:
    """Each response has the routes of all its positions, and of its prompt's."""
    seen = set()
    for request in requests:
        tokens, routes = recorded[request.request_id]
        prompt = unpack_tokens(request.prompt_tokens).tolist()
        np.testing.assert_array_equal(routes, oracle.routes_of(prompt + tokens))
        seen |= {expert for route in routes for layer in route for expert in layer}
    assert seen == set(range(MOE.num_experts))


def groups(request_of: Requests) -> list[GenerateRequest]:
    """Three prompts, the longest of more than a page, with four responses to each."""
    prompts = ([3], [7, 1, 4, 4, 9, 2, 30, 8, 6, 11, 2], [9, 8, 7, 6, 5])
    return [
        request_of(4 * group + place, prompt, group=group, max_tokens=24)
        for group, prompt in enumerate(prompts)
        for place in range(4)
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_routes_are_those_of_every_position(
    which: int, engines: tuple[Engine, Engine], moe_params: Any, request_of: Requests
) -> None:
    """Prompts shared in a group, pages copied and found again, rollouts evicted."""
    recorded: Recorded = {}
    requests = groups(request_of)
    engines[which].submit(requests)
    assert take(engines[which].run(), recorded) > 0
    assert (engines[which].drafts.counts.accepted > 0) == (which == 1)
    check(RoutedOracle(moe_params), requests, recorded)


def test_what_is_sampled_behind_a_stop_string_has_no_routes(
    engines: tuple[Engine, Engine], moe_params: Any, request_of: Requests
) -> None:
    """Pages are free, so that the next dispatch is under way before the end is seen."""
    stops = pack([(0, token, token % 2 - 1) for token in range(1, 37) if token % 3])
    requests = [
        msgspec.structs.replace(
            request,
            sampling=msgspec.structs.replace(request.sampling, stop_ids=(), stops=stops),
        )
        for request in groups(request_of)
        if request.request_id % 4 == 0
    ]
    recorded: Recorded = {}
    discarded = 0
    for request in requests:
        engines[0].submit([request])
        dispatches = list(engines[0].run())
        discarded += sum(dispatch.discarded for dispatch in dispatches)
        take(dispatches, recorded)
    assert discarded > 0
    check(RoutedOracle(moe_params), requests, recorded)


def test_a_rollout_that_moves_keeps_its_routes(
    engines: tuple[Engine, Engine], moe_params: Any, request_of: Requests
) -> None:
    """The engine that it comes to says those of new tokens only, and together they are whole."""
    recorded: Recorded = {}
    requests = groups(request_of)[4:8]
    here, there = engines
    here.submit(requests)
    take((here.finish() for _ in range(2) if here.begin()), recorded)
    before = {i: (list(tokens), list(routes)) for i, (tokens, routes) in recorded.items()}
    moved = here.release([r.request_id for r in requests])
    assert moved and all(before[i][0] for i in moved)
    again = [
        request_of(r.request_id, unpack_tokens(r.prompt_tokens), before[r.request_id][0], group=1)
        for r in requests
        if r.request_id in moved
    ]
    there.submit(again)
    take(there.run(), recorded)
    for request_id, (tokens, routes) in before.items():
        assert recorded[request_id][0][: len(tokens)] == tokens
        assert recorded[request_id][1][: len(routes)] == routes
    check(RoutedOracle(moe_params), requests, recorded)


def test_the_routes_of_what_is_given_come_with_the_turn_after_it(
    engines: tuple[Engine, Engine], moe_params: Any, request_of: Requests
) -> None:
    """The token that ended the turn before has one then, too: nothing followed it before."""
    recorded: Recorded = {}
    requests = groups(request_of)
    here, there = engines
    here.submit(requests)
    take(here.run(), recorded)
    resumed = []
    for r in requests:
        tokens, routes = recorded[r.request_id]
        given = [9, 5, 2, 2, 31, 5][: 1 + r.request_id % 6]
        if len(tokens) < r.sampling.max_tokens:
            recorded[r.request_id] = tokens + given, routes
            known, runs = pack_tokens(tokens + given), (len(tokens), len(given))
            resumed.append(msgspec.structs.replace(r, response_tokens=known, runs=runs))
    assert len(resumed) > 4
    there.submit(resumed)
    take(there.run(), recorded)
    check(RoutedOracle(moe_params), requests, recorded)


def test_nothing_is_recorded_unasked(build_engine: Callable[..., Engine]) -> None:
    engine = build_engine()
    packed = step_inputs.pack_mixed(engine.layout, ())
    _, output = jax.eval_shape(
        engine.programs.mixed, engine.parameters.leaves, engine.device_state.pools, packed
    )
    assert output.routes is None
