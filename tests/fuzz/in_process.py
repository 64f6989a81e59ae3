"""Mutated frames through the manager's own decoders into its state machine.

A step is in progress with the trainer's engine and one honest server at work. Beside them
come and go

strangers   servers with a token whose engine is another program: no rollout is ever theirs,
            so nothing they send may move, add or take a single token
insiders    servers with rollouts: what they say of these rollouts may be wrong, nothing else
impostors   with the trainer's route and token: no frame may make the manager raise

Whatever is sent must be encodable, whatever is recorded must be JSON, and at the end of
every round the honest ones finish the step and all its tokens are checked.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    Action,
    Close,
    Event,
    Exit,
    FromServer,
    FromTrainer,
    Record,
    Send,
    ServerGone,
    Tick,
    TrainerGone,
)
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.manager_app import (
    NotAllowed,
    decode_from_server,
    decode_from_trainer,
)
from rlboost_jax.manager.state.instances import Instance
from tests.fuzz import corpus
from tests.fuzz.mutators import Mutator
from tests.manager.fakes import (
    ROUTING,
    RUN,
    SNAPSHOTS,
    STOP,
    batch,
    begin_batch,
    hello,
    lead,
    length,
    manifest,
    ready,
    routes,
    settings,
    token,
)

TRAINER, RESERVED, GOOD, FIRST = 1, 2, 3, 10  # streams
ROUND: Final = 5_000  # frames to one step
STREAM: Final = 40  # frames to one stream, if it lasts
PROMPTS: Final = 12
SAID: Final = m.pack_tokens([5])  # by an environment, which answers in every second step
DIGEST: Final = "d"


@dataclass
class Tally:
    """What came of the frames."""

    frames: int = 0
    refused: int = 0  # by the decoders
    taken: int = 0  # by the state machine, whatever it made of them
    closed: int = 0  # streams that the manager ended
    rounds: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        rate = self.frames / self.seconds if self.seconds else 0.0
        return (
            f"{self.frames:,} frames in {self.seconds:.1f} s ({rate:,.0f}/s): {self.refused:,} "
            f"were no messages, {self.taken:,} were taken in, {self.closed:,} streams were ended; "
            f"{self.rounds} steps came out right"
        )


class Scene:
    """One manager with honest peers, and a mutant beside them."""

    def __init__(self, random: Random, tally: Tally) -> None:
        self.random, self.tally = random, tally
        self.now = 0.0
        self.manager = Manager(
            settings(
                routing=ROUTING,
                manager__lease_seconds=1e12,
                manager__progress_seconds=1e12,
                fleet__provider="none",
            )
        )
        self._mutants = Mutator(corpus.frames("server"), random)
        self._trainer_mutants = Mutator(corpus.frames("trainer"), random)
        self._streams = FIRST
        self._step = -1
        self._sequence = {RESERVED: 0, GOOD: 0}
        self._work: dict[int, dict[int, m.GenerateRequest]] = {RESERVED: {}, GOOD: {}}
        self._finished: dict[int, m.FinishedRollout] = {}
        self._report: m.BatchReport | None = None
        self._do(FromTrainer(TRAINER, m.TrainerHello(run_id=RUN, window=None)))
        self._do(FromServer(RESERVED, hello(instance="reserved", reserved=True)))
        self._do(FromServer(GOOD, hello(instance="good")))

    def round(self, num_frames: int) -> None:
        """A step, that many frames, the end of the step."""
        self._begin()
        end = self.tally.frames + num_frames
        while self.tally.frames < end:
            most = min(STREAM, end - self.tally.frames)
            self.random.choice((self._stranger, self._stranger, self._insider))(most)
            if self.random.random() < STREAM / ROUND:  # so that most is open for most of the time
                self._advance(1)
        self._end()
        self.tally.rounds += 1

    # The honest

    def _begin(self) -> None:
        self._step += 1
        self._finished, self._report = {}, None
        step = self._step
        self._do(FromTrainer(TRAINER, m.Publish(manifest=manifest(step, DIGEST))))
        begin = begin_batch(step, step, DIGEST, prompts=PROMPTS, turns=self._turns)
        self._do(FromTrainer(TRAINER, begin))
        for stream in (RESERVED, GOOD):
            self._do(FromServer(stream, ready(step, DIGEST)))
        self._advance(1)

    @property
    def _turns(self) -> int:
        return 1 + self._step % 2

    def _advance(self, count: int) -> None:
        """Each honest server gives the next tokens of all it holds."""
        for stream, work in self._work.items():
            rows, leads = [], []
            for request in list(work.values()):
                leads.append(lead(request))
                had = len(request.response_tokens) // 4
                whole = length(DIGEST, request.work.batch, request.work.sample)
                place = range(had, min(whole, had + count))
                tokens = [token(DIGEST, request.work.batch, request.work.sample, i) for i in place]
                tokens = tokens or [STOP]  # an insider has made it longer than it should be
                rows.append((request.request_id, tokens))
                data = request.response_tokens + m.pack_tokens(tokens)
                work[request.request_id] = msgspec.structs.replace(request, response_tokens=data)
                if had + len(tokens) >= whole:
                    del work[request.request_id]
            if rows:
                sequence = self._sequence[stream]
                self._sequence[stream] += 1
                self._do(FromServer(stream, batch(sequence, self._step, rows, leads=leads)))

    def _end(self) -> None:
        """Everything is finished by the honest, and what arrives is what was to be sampled."""
        for _ in range(10_000):
            if len(self._finished) == PROMPTS * 2:
                break
            self._advance(99)
        assert len(self._finished) == PROMPTS * 2, "a rollout was forgotten"
        for sample, result in self._finished.items():
            whole = length(DIGEST, self._step, sample)
            tokens = [token(DIGEST, self._step, sample, i) for i in range(whole)]
            honest = set(result.instances) <= {"reserved", "good"}
            said = SAID if self._turns > 1 and tokens[-1] == STOP else b""
            assert not honest or result.tokens == m.pack_tokens(tokens) + said, f"sample {sample}"
            assert isinstance(result, m.RoutedRollout)
            assert not honest or result.routes == routes(2, tokens), f"sample {sample}"
        trained = m.BatchTrained(batch=self._step, train_wait_seconds=0.0, train_seconds=1.0)
        self._do(FromTrainer(TRAINER, trained))
        self._do(FromTrainer(TRAINER, m.BatchCommitted(batch=self._step)))
        report = self._report
        assert report is not None and report.tokens_generated == (
            report.tokens_delivered + report.tokens_lost
        )
        assert report.tokens_generated < 2**53, "the accounts were blown up"

    # The others

    def _stranger(self, most: int) -> None:
        stream = self._open(hello(instance="mutant", fingerprint="another program"))
        for _ in range(most):
            self._wait()
            before = self._state()
            actions, over = self._say(stream)
            self._assert_own_affair(stream, actions)
            assert self._state() == before, "a stranger has changed something"
            if over:
                return
        self._leave(stream)

    def _insider(self, most: int) -> None:
        stream = self._open(hello(instance="insider"))
        self._do(FromServer(stream, ready(self._step, DIGEST)))
        for _ in range(most):
            self._wait()
            _, over = self._say(stream)
            self._assert_accounts()
            if over:
                return
        self._leave(stream)
        self._assert_accounts()

    def impostors(self, num_frames: int) -> None:
        """Frames on the trainer's route into managers of their own, which they may end."""
        scene, stream = None, FIRST
        for _ in range(num_frames):
            if scene is None or scene.manager.over:
                scene = Scene(self.random, self.tally)
                scene._begin()
            self.tally.frames += 1
            try:
                message = decode_from_trainer(self._trainer_mutants(), snapshots=Path(SNAPSHOTS))
            except (msgspec.DecodeError, NotAllowed):
                self.tally.refused += 1
                scene._do(TrainerGone(stream, "malformed"))
                stream += 1
                continue
            self.tally.taken += 1
            scene._do(FromTrainer(stream, message))

    def _open(self, first: m.Hello) -> int:
        self._streams += 1
        if self.random.random() < 0.1:  # its first frame is not a Hello, or not quite
            self._say(self._streams)
            self._leave(self._streams)
            self._streams += 1
        self._do(FromServer(self._streams, first))
        return self._streams

    def _say(self, stream: int) -> tuple[list[Action], bool]:
        """One mutant; returns what was done, and whether its stream is over."""
        self.tally.frames += 1
        frame = self._mutants()
        try:
            message = decode_from_server(frame, from_trainer=False)
        except (msgspec.DecodeError, NotAllowed) as error:
            self.tally.refused += 1
            return self._do(ServerGone(stream, f"malformed: {error}")), True
        self.tally.taken += 1
        actions = self._do(FromServer(stream, message))
        if over := stream not in self.manager.view.instances:
            self.tally.closed += 1
            reasons = [a.reason for a in actions if isinstance(a, Close) and a.stream == stream]
            self.tally.reasons.update(reason.partition("=")[0][:40] for reason in reasons)
        return actions, over

    def _wait(self) -> None:
        """Time passes: whatever is due by then is nobody's doing."""
        self.now += self.random.choice((0.0, 1e-4, 0.01, 1.0))
        self._do(Tick())

    def _leave(self, stream: int) -> None:
        self._do(ServerGone(stream, "stream closed"))

    def _betray(self, requests: tuple[m.GenerateRequest, ...]) -> None:
        """Have the mutants know what others hold: request ids are easily guessed."""
        ids = [r.request_id for r in requests]
        for sequence in (0, 1):
            rows = [(i, [1, 2]) for i in ids]
            known = batch(sequence, self._step, rows, running=1, leads=[2] * len(rows))
            self._mutants.learn(m.encode(known))
        self._mutants.learn(m.encode(m.Released(request_ids=m.pack_ids(ids))))

    def _tempt(self, stream: int, requests: tuple[m.GenerateRequest, ...]) -> None:
        """Have the mutants know what an insider could answer now."""
        sequence = self.manager.view.instances[stream].activity.next_sequence
        rows = [(r.request_id, [1, 2, 3]) for r in requests]
        leads = [lead(r) for r in requests]
        for frame in (
            batch(sequence, self._step, rows, in_flight=4, running=len(rows), leads=leads),
            batch(sequence + 1, self._step, rows[:1], in_flight=1, running=1, leads=[0]),
            m.Released(request_ids=m.pack_ids([r.request_id for r in requests])),
            ready(self._step, DIGEST),
        ):
            self._mutants.learn(m.encode(frame))

    # What happens, and what must hold

    def _do(self, event: Event) -> list[Action]:
        actions = self.manager.handle(event, self.now)
        for action in actions:
            match action:
                case Send(stream, message):
                    m.encode(message)
                    self._hear(stream, message)
                case Record(_, _, _, detail):
                    line = json.dumps(detail, allow_nan=False)
                    assert len(line) < 8_000, "a line that nobody wants to read"
        return actions

    def _hear(self, stream: int, message: m.ToServer | m.ToTrainer) -> None:
        match message:
            case m.Generate(requests=requests) if stream in self._work:
                self._work[stream].update((r.request_id, r) for r in requests)
                self._betray(requests)
            case m.Generate(requests=requests):
                self._tempt(stream, requests)
            case m.Release(request_ids=data) if stream in self._work:
                ids = [i for i in m.unpack_ids(data).tolist() if self._work[stream].pop(i, None)]
                self._do(FromServer(stream, m.Released(request_ids=m.pack_ids(ids))))
            case m.FinishedRollout(work=work) if stream == TRAINER:
                assert work.batch == self._step and work.sample not in self._finished, "twice"
                self._finished[work.sample] = message
            case m.Parked(work=work, attempt=attempt, turn=turn) if stream == TRAINER:
                answer = m.Answer(work=work, attempt=attempt, turn=turn, tokens=SAID, over=True)
                self._do(FromTrainer(TRAINER, answer))
            case m.BatchReport() if stream == TRAINER:
                self._report = message

    def _state(self) -> tuple[Any, ...]:
        """All that is not a mutant's own account."""
        manager = self.manager
        step = manager.view.batch
        assert step is not None
        return (
            tuple(
                (
                    r.placement.holder,
                    r.placement.request_id,
                    r.transcript.num_tokens,
                    r.placement.releasing,
                )
                for r in step.rollouts
            ),
            tuple(
                bytes(t.tokens) + bytes(t.logprobs) + bytes(t.routes)
                for r in step.rollouts
                for t in (r.transcript,)
                if r.result is None
            ),
            step.num_waiting,
            step.num_finished,
            step.books.generated - step.books.lost,
            manager.view.window_open,
            manager.view.window,
            manager.view.kept,
            tuple(manager.view.manifests),
            *(_of(i) for i in manager.view.roster if i.stream in (RESERVED, GOOD)),
        )

    def _assert_own_affair(self, stream: int, actions: list[Action]) -> None:
        """The trainer hears of the fleet as ever, and no other server of anything."""
        for action in actions:
            match action:
                case Send(receiver, message):
                    own = receiver == stream
                    assert own or isinstance(message, m.FleetStatus), f"sent to {receiver}"
                    assert not isinstance(message, m.Generate | m.Release), "work for a stranger"
                case Close(closed, _):
                    assert closed == stream, f"closed {closed}"
                case Record():
                    pass
                case Exit():
                    raise AssertionError("the manager left")

    def _assert_accounts(self) -> None:
        manager, limit = self.manager, settings().manager.max_pending
        holders: Counter[int] = Counter()
        for instance in manager.view.roster:
            assert len(instance.held) <= instance.hello.slots + limit
            assert instance.num_releasing == sum(
                r.placement.releasing for r in instance.held.values()
            )
            assert instance.groups == Counter(r.group for r in instance.held.values())
            holders.update(map(id, instance.held.values()))
        step = manager.view.batch
        assert step is not None
        held = sum(holders[id(r)] for r in step.rollouts)
        assert all(holders[id(r)] <= 1 for r in step.rollouts)
        assert held + step.num_waiting + step.num_dormant == len(step.rollouts)
        assert all(
            r.transcript.num_sampled <= step.begin.sampling.max_tokens for r in step.rollouts
        )
        kept = sum(r.transcript.num_sampled for r in step.rollouts)
        assert step.books.generated - step.books.lost == kept


def _of(instance: Instance) -> tuple[Any, ...]:
    """What decides what a server gets and what is taken from it."""
    parameters, activity = instance.parameters, instance.activity
    return (
        parameters.version,
        parameters.digest,
        activity.in_flight,
        activity.next_sequence,
        tuple(instance.held),
    )


def fuzz(
    num_frames: int, seed: int, *, watch: Callable[[Tally], None] = lambda tally: None
) -> Tally:
    """Send that many frames; raises AssertionError, or whatever the manager raised.

    Args:
        watch: called after each round.
    """
    tally, random = Tally(), Random(seed)
    scene = Scene(random, tally)
    started = time.perf_counter()
    while tally.frames < num_frames:
        scene.round(min(ROUND, num_frames - tally.frames))
        scene.impostors(min(ROUND // 10, num_frames - tally.frames))
        tally.seconds = time.perf_counter() - started
        watch(tally)
    sizes = scene.manager.view.instances, scene.manager.view.manifests
    assert len(sizes[0]) == 2 and len(sizes[1]) <= 2, "something is kept of those who left"
    return tally
