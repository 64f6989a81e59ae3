"""The inference engine: rollouts go in, tokens come out, and how it was scheduled cannot show.

Invariants:

- A rollout that is submitted stays until it is finished or released. Out of pages, it waits.
- Its tokens and log-probabilities are a function of the weights, its tokens so far (sampled or
  given), its sampling settings and (seed, step, sample). Companions, slots, pages, chunks,
  evictions, steps per dispatch and the engine do not change a bit of them, within a `fingerprint`.
- After `warm_up` nothing is compiled, whatever arrives.

Work goes in two halves: `begin` launches a device program and returns at once, `finish` waits for
it. In between the host is free to talk, and `follow` can launch the next decode steps, so that the
device has work while the host reads; `run` does all that. Not thread-safe: one thread at a time.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import jax

from rlboost_jax.engine.device_state import DeviceState
from rlboost_jax.engine.devices import Devices
from rlboost_jax.engine.dispatches import EngineDispatch, dispatch_of, own_of, sampled_of
from rlboost_jax.engine.engine_parameters import EngineParameters, PreparedLeaves
from rlboost_jax.engine.engine_plan import plan_engine
from rlboost_jax.engine.engine_rollouts import EngineRollout, new_rollout
from rlboost_jax.engine.fingerprint import fingerprint
from rlboost_jax.engine.pages import PagePool
from rlboost_jax.engine.program_plans import ProgramPlan
from rlboost_jax.engine.requests import EngineBusy, EngineLimits, RequestRejected, check_request
from rlboost_jax.engine.scheduler import Scheduler
from rlboost_jax.engine.step_programs import Output, Programs
from rlboost_jax.engine.weight_panels import reads_panels
from rlboost_jax.messages import GenerateRequest
from rlboost_jax.models.adapters import base_model
from rlboost_jax.models.params import Params
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings import fingerprints
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.routing import Routing
from rlboost_jax.settings.sampling_config import NoiseKind
from rlboost_jax.settings.speculation_config import Drafter


class Engine:
    """A decoder on `config.tensor_parallel` devices with slots for `config.slots` rollouts.

    Attributes:
        device, device_kind: the first of them; what all of them are, for people.
        device_state: weights, KV pools and programs, which run there.
        drafts: when decode steps carry drafts, and counts of these steps.
        texts: that drafts are made from.
        described: the fingerprint of before the check of rows.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: EngineConfig,
        *,
        slot_tokens: int,
        truncated_sampling: bool,
        devices: Sequence[jax.Device] | None = None,
        param_dtype: str | None = None,
        taken_bytes: int = 0,
        routing: Routing | None = None,
        exact: bool = True,
        noise: NoiseKind = "inverse_cdf",
        drafters: Collection[Drafter] = (),
    ) -> None:
        """Allocate the KV pool, as large as `device_memory.py` plans it. Nothing is compiled yet.

        Args:
            slot_tokens: longest prompt plus response.
            truncated_sampling: whether requests may ask for top-k or top-p.
            devices: to run on, `config.tensor_parallel` of them; None takes the first there are.
            param_dtype: that loaded parameters are cast to; None is `model.dtype`.
            taken_bytes: that others have or will have on the device, in this process.
            routing: of the routes that come with tokens; None: none do.
            exact: whether a token has the same bits by prefill and by decode, at the price of as
                many rows in both where products need that.
            noise: how it selects a token, see `rlboost_kernels.sampling.noise`.
            drafters: of tokens that are verified in free rows, see `drafts.py`.

        Raises:
            ValueError: settings do not fit together; names them.
            NotEnoughMemory: the device is too small for them.
            NotEnoughDevices: there are fewer than `config.tensor_parallel`.
        """
        spread = Devices(base_model(model), config.tensor_parallel, devices)
        self.device, self.device_kind = spread.first, spread.kind
        self.layout, self.memory = plan_engine(
            model,
            config,
            self.device,
            slot_tokens=slot_tokens,
            param_dtype=param_dtype or model.dtype,
            truncated_sampling=truncated_sampling,
            exact=exact,
            drafts=bool(drafters),
            taken_bytes=taken_bytes,
        )
        self.slots, self.slot_tokens = config.slots, slot_tokens
        self.cache_tokens = self.layout.num_pages * config.page_size  # of context, in all slots
        self.programs = Programs(
            base_model(model),
            self.layout,
            max_steps=config.steps_per_dispatch,
            truncated_sampling=truncated_sampling,
            noise=noise,
            attention=config.attention,
            kv_dtype=config.kv_dtype,
            devices=spread,
            routing=routing,
        )
        self.parameters = EngineParameters(
            model,
            spread.places(),
            param_dtype or model.dtype,
            double_buffered=self.memory.double_buffered,
            join=not spread.split,
            panels=reads_panels(spread),
        )
        self.device_state = DeviceState(self.programs, self.parameters, routing)
        self.limits = EngineLimits(
            vocab_size=model.vocab_size,
            slot_tokens=slot_tokens,
            truncated_sampling=truncated_sampling,
        )
        self.fingerprint = self.described = fingerprint(
            self.device,
            model=replace(model, source="", family=""),  # names
            token_rows=config.token_rows,
            slots=config.slots,
            page_size=config.page_size,
            kv_dtype=config.kv_dtype,
            param_dtype=param_dtype or model.dtype,
            attention=self.programs.attention,
            truncated_sampling=truncated_sampling,
            noise=noise,
            routing=routing,
            tensor_parallel=config.tensor_parallel,
            exact=exact,
        )
        self._scheduler = Scheduler(self.layout, config.steps_per_dispatch, drafters)
        self.drafts, self.texts = self._scheduler.drafts, self._scheduler.texts
        self._held: dict[int, EngineRollout] = {}
        self._arrivals = 0
        self._launched: deque[tuple[ProgramPlan, Output, int]] = deque()  # unfinished, at most two

    @property
    def version(self) -> Version | None:
        """Policy version of the weights; None before the first `load`."""
        return self.parameters.version

    @property
    def running(self) -> int:
        """Rollouts in slots."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Rollouts held and not in a slot."""
        return len(self._scheduler.waiting)

    @property
    def in_flight(self) -> int:
        """Most tokens that `finish` can return without a launch; with drafts as many as before."""
        work = ((item, plan.likely) for plan, _, _ in self._launched for item in plan.work)
        return sum(min(item.budget, most) for item, most in work if not item.rollout.finished)

    @property
    def backlog(self) -> dict[int, int]:
        """Known tokens that each rollout has to run before it samples, in the order of turns."""
        turns = (*self._scheduler.running, *self._scheduler.waiting)
        return {rollout.request_id: rollout.known - 1 - rollout.computed for rollout in turns}

    def held(self) -> tuple[int, ...]:
        """Ids of all rollouts, in the order they came."""
        return tuple(self._held)

    def load(self, params: Params | PreparedLeaves, version: Version) -> None:
        """Take parameters: a tree, layers stacked, which is copied to the device, or prepared ones.

        Raises EngineBusy if rollouts of another version are still held, and ValueError.
        """
        self._begin_anew("load")
        self.parameters.load(params, version)

    def warm_up(self, announce: Callable[[str], None] | None = None) -> None:
        """Compile every program by running it on nothing, on zeros if nothing is loaded.

        Args:
            announce: called with a line on what is being prepared.
        """
        self._begin_anew("warm_up")
        self.device_state.warm_up(announce or (lambda _: None))

    def assert_row_invariance(self) -> str:
        """Check on this device that companions, slots and chunks do not change a bit.

        Uses the loaded weights, or random ones, whose bits become part of the fingerprint.
        Overwrites the pages. Returns a digest of all bits that agreed.

        Raises:
            RowsNotInvariant: they do.
            EngineBusy: rollouts are held.
        """
        self._begin_anew("assert_row_invariance")
        bits = self.device_state.assert_row_invariance()
        if self.version is None:
            self.fingerprint = fingerprints.with_bits(self.described, bits)
        return bits

    def lend_pages(self) -> PagePool:
        """Hand out a fresh account of all pages, for `jetstream.py`; cached prefixes are forgotten.

        Until its last use this engine must be given no rollouts.

        Raises:
            EngineBusy: rollouts are held.
        """
        self._begin_anew("lend_pages")
        return PagePool(self.layout.num_pages)

    def submit(self, requests: Sequence[GenerateRequest]) -> None:
        """Accept new or resumed rollouts. They run from the next `begin` on.

        Raises:
            RequestTooLong: prompt and longest response do not fit in a slot.
            RequestRejected: see `requests.py`, or its id is held. Nothing of the call is taken.
        """
        new = {request.request_id for request in requests}
        for request in requests:
            check_request(request, self.limits, version=self.version)
            if request.request_id in self._held:
                raise RequestRejected(f"request {request.request_id} is held already; release it")
        if len(new) != len(requests):
            raise RequestRejected(f"{len(requests)} requests have {len(new)} different ids")
        for request in requests:
            rollout = new_rollout(request, self.layout, self._arrivals)
            self._arrivals += 1
            self._held[request.request_id] = rollout
            self._scheduler.add(rollout)

    def release(self, request_ids: Sequence[int]) -> list[int]:
        """Stop and forget the given rollouts, as far as they are held. Returns their ids.

        All their tokens were returned by `finish` before. That is why this is refused while a
        program is in flight: its tokens would follow those of a rollout given back.

        Raises:
            EngineBusy: between `begin` and `finish`.
        """
        if self._launched:
            raise EngineBusy("release came between begin and finish; call finish first")
        released = [i for i in dict.fromkeys(request_ids) if i in self._held]
        for request_id in released:
            self._scheduler.remove(self._held.pop(request_id))
        return released

    def begin(self) -> int:
        """Schedule and launch; returns before the device is done.

        Programs that only prefill yield nothing and follow one another without waiting, until
        one that samples.

        Returns:
            The most tokens that `finish` can return, at least 1; 0 if there are no rollouts, and
            then nothing was launched.

        Raises:
            EngineBusy: the last dispatch was not finished.
        """
        if self._launched:
            raise EngineBusy("begin came twice; call finish in between")
        again = 0
        while (plan := self._scheduler.plan()) is not None:
            output = self.device_state.launch(plan)
            again += plan.prefilled_again
            if plan.most_tokens > 0:
                self._launched.append((plan, output, again))
                return plan.most_tokens
        return 0

    def follow(self) -> int:
        """Launch the next decode steps from what those in flight will leave on the device.

        What a stop id ends in the first of the two yields nothing in the second.

        Returns:
            The most tokens that this adds to those in flight; 0 if the next program depends on
            what those are, or there is none, and then nothing was launched.

        Raises:
            EngineBusy: not one program is in flight, but none or two.
        """
        if len(self._launched) != 1:
            raise EngineBusy(f"follow came with {len(self._launched)} programs in flight, not one")
        plan = self._scheduler.follow(self._launched[0][0])
        if plan is None:
            return 0
        self._launched.append((plan, self.device_state.launch(plan), 0))
        return plan.most_tokens

    def run(self) -> Iterator[EngineDispatch]:
        """Yield dispatches until no rollout is held, following wherever that is possible."""
        while more := self.begin():
            while more:
                more = self.follow()
                yield self.finish()

    def finish(self) -> EngineDispatch:
        """Wait for the older program in flight and return what it yielded.

        Raises:
            EngineBusy: nothing is in flight.
            NonFiniteLogits: the weights are broken; the engine is of no further use.
        """
        if not self._launched or self.version is None:
            raise EngineBusy("finish came without begin; call begin first")
        plan, output, again = self._launched.popleft()
        sampled = own_of(plan, sampled_of(output))
        if sampled.drafts is not None:
            self.drafts.verified(sampled.drafts)
        yielding = [i for i in range(len(plan.work)) if sampled.counts[i]]
        routes = self.device_state.routes(plan, output, sampled.counts, yielding)
        finished = []
        for i in yielding:
            rollout = plan.work[i].rollout
            if self._scheduler.report(rollout, sampled.tokens[i, : sampled.counts[i]]):
                finished.append(rollout.request_id)
                del self._held[rollout.request_id]
        return dispatch_of(
            plan, sampled, routes, version=self.version, finished=finished, prefilled_again=again
        )

    def _begin_anew(self, call: str) -> None:
        """Forget what the pages hold. Raises EngineBusy if rollouts are held."""
        if self._held or self._launched:
            held = f"{len(self._held)} are held: finish or release them first"
            raise EngineBusy(f"{call} needs an engine without rollouts; {held}")
        self._scheduler.prefixes.forget()
        self._scheduler.texts.forget()
