"""Valid frames of every message a server or a trainer sends: what mutants are made of.

`python -m tests.fuzz.corpus` writes them anew where the messages have changed.
"""

import sys
from pathlib import Path
from typing import Final

import msgspec

from rlboost_jax import messages as m
from rlboost_jax.sequences.identities import Batch, Work
from rlboost_jax.sequences.stop_table import END, pack
from tests.manager.fakes import (
    RUN,
    TEACHER,
    batch,
    begin_batch,
    hello,
    manifest,
    ready,
    teacher_scores,
)

FOLDER: Final = Path(__file__).parent / "corpus"
WINDOW: Final = m.WindowState(seconds=0.5, memory={1: 0.25, 2: 1.0}, instance_cap=3)

SERVER: Final[dict[str, m.ServerMessage]] = {
    "hello": hello(instance="mine", fingerprint="another"),
    "hello_nameless": hello(zone="europe-west4-a", device="NVIDIA H100 80GB HBM3"),
    "hello_drafting": hello(instance="mine", text_tokens=2**21),
    "hello_reserved": hello(instance="reserved", reserved=True),
    "renew": m.Renew(),
    "renew_compiled": m.Renew(programs_compiled=3),
    "ready": ready(0),
    "ready_pulled": m.Ready(version=1, params_digest="d", seconds=0.75, fetched_bytes=123_456),
    "sources_used": m.SourcesUsed(
        root="ab" * 32,
        outcomes=(
            m.SourceOutcome(source="spot-1", fetched_bytes=2**20, seconds=1.5, fault="slow"),
        ),
        outside_bytes=2**20,
        wasted_bytes=2**10,
    ),
    "weights_rejected": m.WeightsRejected(version=0, reason="a/0: SHA-256 ab…, its manifest cd…"),
    "token_batch": batch(0, 0, [(1, [5, 6, 7]), (2, [8])], in_flight=8, running=2, waiting=1),
    "token_batch_late": batch(7, 0, [(4_000_000_000, [1] * 12)], in_flight=1, running=1),
    "token_batch_empty": batch(0, 0, []),
    "routed_token_batch": batch(0, 0, [(1, [5, 6, 7]), (2, [8])], running=2, leads=[2, 0]),
    "released": m.Released(request_ids=m.pack_ids([1, 2, 3])),
    "released_none": m.Released(request_ids=b""),
    "renew_echo": m.Renew(echo=12.5, round_trip=0.3),
    "renew_pulled": m.Renew(pulled_bytes=16_400_000_000),
    "renew_discarded": m.Renew(discarded=17),
    "renew_drafts": m.Renew(drafts=m.DraftCounts(drafted=900, accepted=800, steps_saved=12)),
    "notice": m.Notice(seconds=30.0, reason="aws: terminate"),
    "capacity": m.Capacity(
        slots=1, cache_tokens=0, request_ids=m.pack_ids([1, 2]), frozen=True, reason="a tenant"
    ),
    "capacity_none": m.Capacity(slots=0),
    "teaches": m.Teaches(digests=(TEACHER.params_digest, "d")),
    "teaches_nothing": m.Teaches(digests=()),
    "teaches_pulled": m.Teaches(digests=("d",), fetched_bytes=16_400_000_000),
    "token_scores": m.TokenScores(number=1, logprobs=teacher_scores([5, 6, 7])),
    "hint": m.Hint(reason="aws: rebalance"),
    "spans": m.Spans(
        spans=(
            m.Span(name="dispatch", lane="engine", start=12.5, seconds=0.01, args={"tokens": 8}),
            m.Span(name="pull", lane="weights", start=-3.0, seconds=0.0, args={"of": "v1"}),
        ),
        clock_error=0.0005,
        dropped=1,
    ),
    "spans_none": m.Spans(spans=(), clock_error=0.0),
    "said": m.Said(lines=("device cpu", "programs ready in 2.0 s"), dropped=3),
    "said_nothing": m.Said(lines=()),
    "goodbye": m.Goodbye(reason="SIGTERM"),
    "goodbye_failed": m.Goodbye(reason="failed: out of memory", failed=True),
}
TRAINER: Final[dict[str, m.TrainerMessage]] = {
    "trainer_hello": m.TrainerHello(run_id=RUN, window=None),
    "trainer_hello_window": m.TrainerHello(run_id=RUN, window=WINDOW),
    "trainer_hello_changes": m.TrainerHello(
        run_id=RUN, window=None, changes=("step 4: learner.mesh (1, 8, 1) → (1, 4, 1)",)
    ),
    "publish": m.Publish(manifest=manifest(0, "d")),
    "publish_files": m.Publish(
        manifest=m.Manifest(
            version=1,
            directory=manifest(1, "d").directory,
            params_digest="d",
            piece_bytes=1024,
            list_bytes=200,
            list_sha256="0" * 64,
            seal="f" * 64,
        )
    ),
    "teach": m.Teach(manifests=(TEACHER,)),
    "score_tokens": m.ScoreTokens(
        number=3,
        batch=Batch(0),
        teacher=TEACHER.params_digest,
        temperature=0.8,
        first=3,
        tokens=m.pack_tokens([3, 0, 1, 5, 6]),
    ),
    "begin_batch": begin_batch(0, 0, "d"),
    "begin_batch_stops": msgspec.structs.replace(
        begin_batch(0, 0, "d"),
        sampling=msgspec.structs.replace(
            begin_batch(0, 0, "d").sampling, stops=pack([(0, 5, 1), (1, 6, END)])
        ),
    ),
    "begin_batch_turns": begin_batch(0, 0, "d", turns=3),
    "answer": m.Answer(
        work=Work(seed=7, batch=Batch(0), prompt=0, sample=1),
        attempt=0,
        turn=0,
        tokens=m.pack_tokens([5, 6]),
        over=False,
    ),
    "answer_last": m.Answer(
        work=Work(seed=7, batch=Batch(0), prompt=1, sample=2),
        attempt=1,
        turn=1,
        tokens=b"",
        over=True,
    ),
    "answer_next": m.Answer(
        work=Work(seed=7, batch=Batch(0), prompt=0, sample=1, sequence=1),
        attempt=2,
        turn=0,
        tokens=b"",
        over=True,
        prompt=m.pack_tokens([3, 4, 5]),
    ),
    "answer_restart": m.Answer(
        work=Work(seed=7, batch=Batch(0), prompt=0, sample=1),
        attempt=0,
        turn=1,
        tokens=b"",
        over=False,
        restart=True,
    ),
    "begin_batch_turn_tokens": begin_batch(0, 0, "d", turns=3, turn_tokens=4),
    "extend_batch": m.ExtendBatch(
        batch=0, prompts=(m.PromptRequest(prompt=3, tokens=m.pack_tokens([3, 0, 1])),)
    ),
    "extend_batch_greedy": m.ExtendBatch(
        batch=0,
        prompts=(m.PromptRequest(prompt=4, tokens=m.pack_tokens([4, 0, 1]), purpose="evaluate"),),
        samples=1,
        sampling=msgspec.structs.replace(begin_batch(0, 0, "d").sampling, temperature=0.0),
    ),
    "batch_trained": m.BatchTrained(batch=0, train_wait_seconds=0.25, train_seconds=1.5),
    "batch_committed": m.BatchCommitted(batch=0),
    "doubt": m.Doubt(
        batch=0,
        samples=m.pack_ids([1]),
        attempts=m.pack_ids([0]),
        positions=m.pack_ids([0]),
        gap=0.5,
    ),
    "doubt_sequence": m.Doubt(
        batch=0,
        samples=m.pack_ids([1]),
        attempts=m.pack_ids([0]),
        positions=m.pack_ids([0]),
        gap=0.5,
        sequences=m.pack_ids([1]),
    ),
    "end_run": m.EndRun(reason="done", over=True),
    "end_run_interrupted": m.EndRun(reason="interrupted", over=False),
}


def frames(kind: str) -> list[bytes]:
    """The committed frames of "server" or "trainer", in the order of their names."""
    return [path.read_bytes() for path in sorted((FOLDER / kind).iterdir())]


def write() -> None:
    for kind, examples in (("server", SERVER), ("trainer", TRAINER)):
        (FOLDER / kind).mkdir(parents=True, exist_ok=True)
        for path in (FOLDER / kind).iterdir():
            path.unlink()
        for name, message in examples.items():
            (FOLDER / kind / f"{name}.msgpack").write_bytes(m.encode(message))


if __name__ == "__main__":
    sys.exit(write())
