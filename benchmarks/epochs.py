"""Decode steps that responses of earlier epochs save, and the bytes by which they travel.

    python -m benchmarks.epochs record RUN [--epoch=360] [--config.SETTING=VALUE …]
    python -m benchmarks.epochs RUN [--rows=256] [--slots=64] [--instances=1] [--churn]

`record` trains the quickstart on so few problems that they come again (15 steps an epoch) and
keeps all responses. Then engines of these sizes sample them again, batch after batch, under a
manager that lives as long as they do: everything is the product's, but for the device, which
yields the recorded tokens. These do not depend on drafts (`tests/engine/test_speculation.py`), so
steps can be counted without weights. With `--churn` the oldest instance leaves before each batch,
and another one comes.

Counted are the batches after the first epoch. *Steps* are decode and mixed steps until the last
token of a batch, of the engine that has most; *bytes* are those of texts that the manager sends by
those of the tokens that it gets.
"""

import argparse
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.speculation import PATIENT, TRAINER, Server, rows_of_a_gpu
from rlboost_jax import messages as m
from rlboost_jax.data import tasks
from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.draft_policy import SpeculationCounts
from rlboost_jax.engine.drafts import LEAST_MATCH, MOST_DRAFTS, NO_TOKEN
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.layouts import DRAFT_CONTEXT, StepLayout
from rlboost_jax.engine.program_plans import ProgramPlan, ScheduledTokens
from rlboost_jax.engine.step_programs import Output
from rlboost_jax.manager.events import Close, Event, FromServer, FromTrainer, Send, ServerGone
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.settings import Settings
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.speculation_config import SpeculationConfig

Ints = NDArray[np.int_]
Key = tuple[int, str, int]  # batch, purpose, sample


def record(arguments: list[str]) -> None:
    """Train the quickstart on `--epoch` problems; keep what the trainer asks for and gets."""
    from absl import app

    from rlboost_jax import main
    from rlboost_jax.settings.command_line import parse

    folder = arguments.pop(0)
    epoch = next((int(a.split("=")[1]) for a in arguments if a.startswith("--epoch=")), 360)
    others = [a for a in arguments if not a.startswith("--epoch=")]
    encode, decode = m.encode, m.decode_to_trainer
    with responses_of(Path(folder)).open("ab") as file:

        def keep(message: Any) -> Any:
            if isinstance(message, m.BeginBatch):
                pickle.dump(message, file)
            elif isinstance(message, m.FinishedRollout):
                work = message.work
                pickle.dump(((work.batch, work.purpose, work.sample), message.tokens), file)
            file.flush()
            return message

        with (
            mock.patch.object(tasks, "EPOCH", epoch),
            mock.patch.object(m, "encode", lambda message: encode(keep(message))),
            mock.patch.object(m, "decode_to_trainer", lambda frame: keep(decode(frame))),
        ):
            command = ["epochs", "--config=configs/quickstart.py", f"--workdir={folder}", *others]
            app.run(main.main, argv=command, flags_parser=parse)


def responses_of(run: Path) -> Path:
    """Return the file of a run's recorded responses, beside its folder."""
    return run.with_name(f"{run.name}.responses")


def recorded(folder: Path) -> tuple[dict[Key, Ints], list[m.BeginBatch]]:
    """Responses of a run, and its batches in order."""
    responses: dict[Key, Ints] = {}
    begins: dict[int, m.BeginBatch] = {}
    with responses_of(folder).open("rb") as file:
        while file.peek(1):
            found = pickle.load(file)
            if isinstance(found, m.BeginBatch):
                begins[found.batch] = found
            else:
                responses[found[0]] = np.frombuffer(found[1], "<i4")
    return responses, [begins[number] for number in sorted(begins)]


class Tape:
    """Stand-in for an engine's device: recorded tokens, in as few steps as drafts let."""

    def __init__(self, responses: dict[Key, Ints], layout: StepLayout, max_steps: int) -> None:
        self._responses, self._layout, self._max_steps = responses, layout, max_steps
        self.version: Version | None = None  # as of an engine's parameters

    def load(self, params: Any, version: Version) -> None:
        self.version = version

    def routes(self, *_: Any) -> None:
        return None

    def launch(self, plan: ProgramPlan) -> Output:
        left = [self._left(work) for work in plan.work]
        shape = 3, max([work.budget for work in plan.work]), len(plan.work)
        sampled = np.zeros(shape, np.int32)
        sampled[0] = NO_TOKEN
        if plan.texts is None:
            yielded, counts = (
                [min(w.budget, len(t)) for w, t in zip(plan.work, left, strict=True)],
                None,
            )
        else:
            yielded, counts = self._verify(plan, left)
        for row, count in enumerate(yielded):
            sampled[0, :count, row] = left[row][:count]
        return Output(sampled, None, counts=counts)  # type: ignore[arg-type]

    def _left(self, work: ScheduledTokens) -> Ints:
        """What a rollout is still to say."""
        rollout = work.rollout
        batch, purpose, _, _ = rollout.prompt_key
        sample = int(rollout.record.view(np.uint32)[step_inputs.SAMPLE])
        return self._responses[batch, purpose, sample][rollout.transcript.num_tokens :]

    def _verify(self, plan: ProgramPlan, left: Sequence[Ints]) -> tuple[list[int], Ints]:
        """Tokens of each rollout, and `SpeculationCounts`."""
        assert plan.texts is not None
        R = len(left)
        budgets = np.array([work.budget for work in plan.work])
        ends = np.minimum(budgets, [len(tokens) for tokens in left])
        newest, texts = plan.texts[:R, :DRAFT_CONTEXT].copy(), plan.texts[:R, DRAFT_CONTEXT:]
        before = np.array([work.count - 1 for work in plan.work])  # rows that prefill takes
        rows = min(self._layout.rows_for(R), self._layout.token_rows - int(before.sum()))
        steps = 1 if plan.mixed else self._max_steps
        yielded, counts = np.zeros(R, int), np.zeros(4, int)
        while counts[0] < steps and (live := yielded < ends).any():
            drafts = proposed(newest, texts)
            most = np.minimum((drafts != NO_TOKEN).sum(1), budgets - yielded - 1)
            widths = widths_of(np.where(live, 1 + most, 1), rows)
            could = live & (before == 0)
            counts += [1, could.sum(), (widths - 1)[could].sum(), 0]
            for row in np.flatnonzero(live):
                coming = left[row][yielded[row] : ends[row]][: widths[row]]
                right = drafts[row, : len(coming) - 1] == coming[:-1]
                count = 1 + int(np.cumprod(right).sum())
                newest[row] = np.concatenate([newest[row], coming[:count]])[-DRAFT_CONTEXT:]
                yielded[row] += count
                counts[3] += count if could[row] else 0
        return yielded.tolist(), counts


def proposed(newest: Ints, texts: Ints) -> Ints:
    """`drafts.proposals` in NumPy."""
    D = texts.shape[1]
    unequal, exact, near = (np.zeros(texts.shape, int) for _ in range(3))
    for back in range(DRAFT_CONTEXT):
        earlier = np.pad(texts, ((0, 0), (back, 0)), constant_values=NO_TOKEN)[:, :D]
        equal = earlier == newest[:, DRAFT_CONTEXT - 1 - back, None]
        unequal += ~equal
        exact += unequal == 0
        near += equal & (unequal <= 1)
    following = np.pad(texts, ((0, 0), (0, MOST_DRAFTS)), constant_values=NO_TOKEN)
    usable = (near >= LEAST_MATCH) & (following[:, 1 : D + 1] != NO_TOKEN)
    rank = (near * (DRAFT_CONTEXT + 1) + exact) * D + np.arange(D)
    best = np.where(usable, rank, -1).argmax(1)
    drafts = np.take_along_axis(following, best[:, None] + 1 + np.arange(MOST_DRAFTS), 1)
    on = usable.any(1)[:, None] & (np.cumprod(drafts != NO_TOKEN, 1) > 0)
    on &= np.arange(MOST_DRAFTS) < np.take_along_axis(near, best[:, None], 1)
    return np.where(on, drafts, NO_TOKEN)


def widths_of(wanted: Ints, num_rows: int) -> Ints:
    """`verify_steps.widths_of` in NumPy."""
    sums = np.minimum(wanted[:, None], np.arange(1, MOST_DRAFTS + 2)).sum(0)
    same = max(int((sums <= num_rows).sum()), 1)
    widths, more = np.minimum(wanted, same), wanted > same
    return widths + (more & (np.cumsum(more) <= num_rows - widths.sum()))


class RecordedServer(Server):
    def hello(self) -> m.Hello:
        texts = self.engine.texts.most_earlier
        return msgspec.structs.replace(super().hello(), text_tokens=texts)


@dataclass(frozen=True, kw_only=True)
class Sums:
    steps: int = 0
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    text_bytes: int = 0
    token_bytes: int = 0

    def line(self, name: str, before: "Sums") -> str:
        counts = self.counts
        return (
            f"| {name} | {self.steps} | {before.steps / self.steps:.3f} "
            f"| {counts.accepted / max(1, counts.drafted):.2f} "
            f"| {counts.tokens / max(1, counts.sequence_steps):.2f} "
            f"| {self.text_bytes / self.token_bytes:.1%} |"
        )


class LastingFleet:
    """Engines and their manager for all batches. Its clock counts steps."""

    def __init__(self, run: RunConfig, responses: dict[Key, Ints], instances: int) -> None:
        patient = {name: PATIENT for name in ("lease_seconds", "renew_seconds", "progress_seconds")}
        manager = replace(run.manager, longest_lease_seconds=0.0, seeding=False, **patient)
        calm = replace(run.fleet, chaos=replace(run.fleet.chaos, enabled=False))
        settings = Settings.of(replace(run, manager=manager, fleet=calm), "run")
        self._manager = Manager(replace(settings, deterministic=False))
        self._run, self._responses = run, responses
        self._now, self._next, self._version = 0.0, TRAINER + 1, Version(0)
        self._servers: dict[int, RecordedServer] = {}
        self._text_bytes = self._token_bytes = 0
        self._trainer(m.TrainerHello(run_id="run", window=None))
        for _ in range(instances):
            self.join()

    def join(self) -> None:
        """Add an instance."""
        run, stream = self._run, self._next
        self._next += 1
        engine = Engine(
            run.model,
            run.engine,
            slot_tokens=run.slot_tokens,
            truncated_sampling=run.truncated_sampling,
            noise=run.sampling.noise,
            drafters=run.speculation.used,
        )
        tape: Any = Tape(self._responses, engine.layout, run.engine.steps_per_dispatch)
        engine.parameters = engine.device_state = tape
        self._servers[stream] = server = RecordedServer(engine, stream)
        self._hear(FromServer(stream, server.hello()))

    def leave(self) -> None:
        """Let the oldest instance go."""
        stream = min(self._servers)
        del self._servers[stream]
        self._hear(ServerGone(stream, "left"))

    def sample(self, begin: m.BeginBatch) -> Sums:
        """Sample a batch, and train it."""
        digest, version = begin.params_digest, begin.version
        names = {"params_digest": digest, "list_sha256": "list"}
        manifest = m.Manifest(version=version, directory="/", **names)
        self._trainer(m.Publish(manifest=manifest))
        self._text_bytes = self._token_bytes = 0
        for stream, server in self._servers.items():
            server.engine.load({}, version)
            server.engine.drafts.counts, server.steps = SpeculationCounts(), int(self._now)
            self._hear(FromServer(stream, m.Ready(version=version, params_digest=digest)))
        since = int(self._now)
        self._trainer(begin)
        while busy := [s for s in self._servers.values() if s.engine.held()]:
            server = min(busy, key=lambda s: (s.steps, s.stream))
            self._now = max(self._now, float(server.steps))
            for batch in server.dispatch():
                self._token_bytes += len(m.encode(batch))
                self._hear(FromServer(server.stream, batch))
        end = max(server.steps for server in self._servers.values())
        self._now = float(end)
        counts = [server.engine.drafts.counts for server in self._servers.values()]
        number = begin.batch
        self._trainer(m.BatchTrained(batch=number, train_wait_seconds=0.0, train_seconds=1.0))
        self._trainer(m.BatchCommitted(batch=number))
        return Sums(
            steps=end - since,
            counts=sum(counts, SpeculationCounts()),
            text_bytes=self._text_bytes,
            token_bytes=self._token_bytes,
        )

    def _trainer(self, message: m.TrainerMessage) -> None:
        self._hear(FromTrainer(TRAINER, message))

    def _hear(self, event: Event) -> None:
        for action in self._manager.handle(event, self._now):
            match action:
                case Send(stream, m.Generate() as work) if stream in self._servers:
                    server = self._servers[stream]
                    self._text_bytes += sum(len(text.tokens) for text in work.texts)
                    if not server.engine.held():
                        server.steps = max(server.steps, int(self._now))
                    server.engine.texts.offer(work.offered, server.engine.limits)
                    server.engine.submit(work.whole)
                case Send(stream, m.Release(request_ids=ids)) if stream in self._servers:
                    self._servers[stream].engine.release(m.unpack_ids(ids).tolist())
                    self._hear(FromServer(stream, m.Released(request_ids=ids)))
                case Close(stream, reason) if stream in self._servers:
                    raise RuntimeError(f"the manager closes {stream}: {reason}")


def measured(
    run: RunConfig, folder: Path, epoch: int, instances: int, *, churn: bool
) -> Iterator[tuple[int, Sums]]:
    """Yield each batch after the first epoch, and what it took."""
    responses, begins = recorded(folder)
    fleet = LastingFleet(run, responses, instances)
    for begin in begins:
        if churn and begin.batch:
            fleet.leave()
            fleet.join()
        sums = fleet.sample(begin)
        if begin.batch * len(begin.prompts) >= epoch:
            yield begin.batch, sums


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["record"]:
        return record(arguments[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run that was recorded")
    parser.add_argument("--epoch", type=int, default=360, help="problems; those of the recording")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--rows", type=int, default=256, help="of each step")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--churn", action="store_true")
    options = parser.parse_args(arguments)
    run = read_run_config(options.run / "config.json")
    run = replace(run, engine=replace(run.engine, slots=options.slots, token_rows=options.rows))
    print("| drafters | steps | ratio | accepted | tokens a step | bytes |")
    print("|---|--:|--:|--:|--:|--:|")
    first: Sums | None = None
    others = ("siblings", "prompt", "recent")
    for drafters in ((), others, (*others, "epochs")):
        config = SpeculationConfig(enabled=bool(drafters), drafters=drafters)  # type: ignore
        sums, since = Sums(), time.perf_counter()
        with rows_of_a_gpu(True):
            of_run = replace(run, speculation=config)
            batches = measured(
                of_run, options.run, options.epoch, options.instances, churn=options.churn
            )
            for _, one in batches:
                sums = Sums(
                    steps=sums.steps + one.steps,
                    counts=sums.counts + one.counts,
                    text_bytes=sums.text_bytes + one.text_bytes,
                    token_bytes=sums.token_bytes + one.token_bytes,
                )
        first = first or sums
        print(sums.line(", ".join(drafters) or "none", first), flush=True)
        print(f"{time.perf_counter() - since:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
