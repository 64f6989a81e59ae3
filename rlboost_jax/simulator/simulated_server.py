"""A rollout server in virtual time: an engine, a stream to the manager, weights to pull.

It says what a real one says, in the same order; only its lease is taken for granted, and it
tells tokens in longer stretches than an engine's dispatch. A server that is lost tells those
of all whole dispatches first, as a real one had by then.
"""

import math
from typing import Final

from rlboost_jax import messages as m
from rlboost_jax.manager.events import FromServer, ServerGone
from rlboost_jax.providers.base import Exited
from rlboost_jax.sequences.identities import Version
from rlboost_jax.simulator.pulls import Pulls
from rlboost_jax.simulator.row_clocks import Row
from rlboost_jax.simulator.simulated_engine import NewTokens, SimulatedEngine
from rlboost_jax.simulator.surroundings import ServerSurroundings

STOP: Final = 0  # ends a response; all other tokens are 1
_STOP_BYTES: Final = m.pack_tokens([STOP])
_ONE_BYTES: Final = m.pack_tokens([1])


class SimulatedServer:
    """A simulated rollout server or reserved engine.

    Args:
        name: "" for a reserved engine, else the name of the manager's request.
        nonce: nonce of the request.
    """

    def __init__(self, world: ServerSurroundings, name: str, nonce: str, *, reserved: bool) -> None:
        self._world, self.name, self.nonce, self.reserved = world, name, nonce, reserved
        self.stream = 0  # 0: not connected
        self.alive = True
        engine = world.config.engine
        rates = world.rates_of(name, reserved=reserved)
        self._slots, self._cache_tokens = rates.slots, rates.kv_tokens
        self.engine = SimulatedEngine(
            rates,
            slots=rates.slots,
            dispatch_tokens=engine.dispatch_tokens,
            message_tokens=engine.message_tokens,
            earlier_tokens=engine.earlier_tokens,
        )
        self._version, self._digest = Version(-1), ""
        self._sequence = 0
        self._reported_at = 0.0
        price = 0.0 if reserved else world.kind_of(name).egress_dollars_per_gb
        self._pulls = Pulls(world, self._loaded, dollars_per_gb=price)
        self._swaps = 0  # begun so far
        self._turn = 0  # of the wake-up that counts

    def connect(self) -> None:
        if not self.alive:
            return
        self.stream = self._world.open(self.hear)
        kind = None if self.reserved else self._world.kind_of(self.name)
        self._say(
            m.Hello(
                instance=self.name,
                reserved=self.reserved,
                slots=self._slots,
                slot_tokens=self._world.slot_tokens,
                price_per_hour=0.0 if kind is None else kind.price_per_hour,
                zone="" if kind is None else kind.zone,
                host="simulated",
                device=self._world.reserved_device if kind is None else kind.device,
                fingerprint="simulated",
                nonce=self.nonce,
                cache_tokens=self._cache_tokens,
                fetches_lists=True,
                text_tokens=self._world.config.engine.earlier_tokens,
            )
        )

    def hear(self, message: m.ToServer) -> None:
        if not self.alive:
            return
        match message:
            case m.Generate(requests=requests, params_digest=digest) as work:
                for prompt, text in work.offered:
                    self.engine.offer(prompt, len(text) // 4)
                self._take(requests, digest)
            case m.Release(request_ids=ids):
                self._release(m.unpack_ids(ids).tolist())
            case m.Announce(manifest=manifest) if self.reserved:
                self._swap(manifest)
            case m.Announce(manifest=manifest) if self._may_fetch:
                self._pulls.take(manifest)
            case m.Prefetch(manifest=manifest) if self._may_fetch:
                self._pulls.prefetch(manifest)
            case m.Leave(reason=reason):
                self.leave(reason)

    @property
    def _may_fetch(self) -> bool:
        world = self._world
        return world.config.links.in_step or world.clock.now == world.published_at

    def offer(self, version: Version, digest: str) -> None:
        """Hand a reserved engine its weights."""
        self._load(version, digest, self._world.clock.now, 0)

    def pause(self, paused: bool) -> None:
        """Give a reserved engine's chips to the learner, or take them back."""
        if self.engine.paused != paused:
            self.engine.pause(paused, self._world.clock.now)
            self._plan()

    def notice(self, seconds: float) -> None:
        """Announce that the machine goes away after `seconds`."""
        if self.alive and self.stream:
            self._say(m.Notice(seconds=seconds, reason="the market"))

    def leave(self, reason: str) -> None:
        """Leave the fleet, after all tokens have been reported."""
        if self.alive:
            self._tell()
            self._say(m.Goodbye(reason=reason))
            self._end(0.0, reason)

    def kill(self, reason: str) -> None:
        """End the machine at once; the manager notices a while later."""
        if self.alive:
            self.engine.lose_dispatch(self._world.clock.now)
            self._tell()
            self._end(self._world.config.instance.detect_seconds, reason)

    def _end(self, known_after: float, reason: str) -> None:
        self.alive = False
        self._pulls.abandon()
        self._world.ended(self.name, self.stream)
        stream, exited = self.stream, Exited(self.name, self.nonce, reason)
        clock, deliver = self._world.clock, self._world.deliver
        if stream:
            clock.after(known_after, lambda: deliver(ServerGone(stream, reason)))
        clock.after(known_after, lambda: deliver(exited))

    def _take(self, requests: tuple[m.GenerateRequest, ...], digest: str) -> None:
        if digest != self._digest:
            ids = m.pack_ids([request.request_id for request in requests])
            self._say(m.Released(request_ids=ids))
            return
        idle = not self.engine.held
        rows = [self._row(request) for request in requests]
        self.engine.add(rows, self._world.clock.now)
        if idle:
            self._say_batch([])  # the dispatch that begins now
        self._plan()

    def _row(self, request: m.GenerateRequest) -> Row:
        known = len(request.response_tokens) // 4
        given = sum(request.runs[1::2])
        done = known - given
        work, turn_tokens = request.work, request.sampling.turn_tokens
        length = self._world.length(work.batch, work.sample)
        if turn_tokens:
            in_turn = request.runs[-1] if len(request.runs) % 2 else 0 if request.runs else done
            length = min(length, done - in_turn + turn_tokens)
        return Row(
            request_id=request.request_id,
            group=(work.batch, work.prompt),
            prompt_tokens=len(request.prompt_tokens) // 4 + given,
            length=length,
            done=done,
            reported=done,
            parks=work.sample if turn_tokens else -1,
            prompt=request.prompt_tokens,
        )

    def _release(self, ids: list[int]) -> None:
        """Release rollouts between two dispatches, when nothing is in flight."""
        self._tell()
        self.engine.remove(ids, self._world.clock.now)
        self._say_batch([], idle=True)
        self._say(m.Released(request_ids=m.pack_ids(ids)))
        if self.engine.running:
            self._say_batch([])
        self._plan()

    def _swap(self, manifest: m.Manifest) -> None:
        """Load a version that the trainer has in memory, into a reserved engine."""
        self._swaps += 1
        swap, since = self._swaps, self._world.clock.now

        def loaded() -> None:
            if swap == self._swaps:
                self._load(manifest.version, manifest.params_digest, since, 0)

        self._world.clock.after(self._world.config.trainer.begin_seconds, loaded)

    def _loaded(self, manifest: m.Manifest, since: float, fetched: int) -> None:
        self._load(manifest.version, manifest.params_digest, since, fetched)

    def _load(self, version: Version, digest: str, since: float, fetched: int) -> None:
        """Return the rollouts and swap the weights."""
        if self.engine.held:
            self._release([*self.engine.running, *self.engine.queued])
        self.engine.forget(version)
        self._version, self._digest = version, digest
        seconds = self._world.clock.now - since
        self._say(
            m.Ready(version=version, params_digest=digest, seconds=seconds, fetched_bytes=fetched)
        )

    def _plan(self) -> None:
        self._turn += 1
        turn, at = self._turn, self.engine.due_at
        if at < math.inf:
            self._world.clock.at(at, lambda: self._due(turn))

    def _due(self, turn: int) -> None:
        if turn == self._turn and self.alive:
            self._tell(everything=False)
            self._plan()

    def _tell(self, *, everything: bool = True) -> None:
        """Report the tokens sampled by now."""
        if not (self.stream and self.engine.held):
            return
        now = self._world.clock.now
        self.engine.advance(now)
        reported = self.engine.report(now, everything=everything)
        if reported:
            self._say_batch(reported)

    def _say_batch(self, reported: list[NewTokens], *, idle: bool = False) -> None:
        parts, total = [], 0
        longest = self._world.config.workload.max_response_tokens
        for row in reported:
            total += row.tokens
            stops = row.ended and row.row.length < longest and not self._goes_on(row.row)
            parts.append(_ONE_BYTES * (row.tokens - stops) + _STOP_BYTES * stops)
        engine = self.engine
        running = len(engine.running)
        again, engine.prefilled_again = engine.prefilled_again, 0
        batch = m.TokenBatch(
            sequence=self._sequence,
            version=self._version,
            request_ids=m.pack_ids([row.row.request_id for row in reported]),
            counts=m.pack_counts([row.tokens for row in reported]),
            tokens=b"".join(parts),
            logprobs=bytes(4 * total),
            in_flight=0 if idle else running * self._world.config.engine.dispatch_tokens,
            running=running,
            waiting=engine.waiting,
            prefilled_again=again,
        )
        self._sequence += 1
        self._say(batch)

    def _goes_on(self, row: Row) -> bool:
        """Whether a turn is over by its length while the response continues."""
        return row.parks >= 0 and row.length < self._world.length(row.group[0], row.parks)

    def _say(self, message: m.ServerMessage) -> None:
        self._world.deliver(FromServer(self.stream, message))
