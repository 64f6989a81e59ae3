"""Moving rollouts to instances and back, once the choice is made.

A released rollout waits again as soon as its server has answered, with the tokens it
has; one whose server is lost waits again at once.
"""

from collections.abc import Collection, Iterable, Sequence

from rlboost_jax.manager.reducer.epoch_drafts import EpochDrafts
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.epoch_texts import TEXTS
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.messages import (
    MAX_TEXTS,
    GenerateRequest,
    PromptText,
    Release,
    ResponsesWithdrawn,
    pack_ids,
    saying_once,
)

GENERATE_BYTES = 8 * 2**20  # of tokens in one frame; more is split


class Placements:
    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._migration = settings.manager.migration
        self._outbox = owners.outbox
        self._ledger = owners.ledger
        self._roster = owners.roster
        kept = settings.kept_tokens
        self._drafts = EpochDrafts(owners.ledger, kept) if kept else None

    def trained(self, batch: BatchRecord) -> None:
        """Keep what drafts may be made from when a batch's prompts come again."""
        if self._drafts is not None:
            self._drafts.learn(batch)

    def generate(
        self, batch: BatchRecord, instance: Instance, rollouts: Sequence[Rollout], now: float
    ) -> None:
        """Place rollouts on an instance."""
        moved: dict[str, list[int]] = {}
        for rollout in rollouts:
            transcript, placement = rollout.transcript, rollout.placement
            previous, given = placement.previous, transcript.newest_given
            if previous and previous != instance.name:
                moved.setdefault(previous, []).append(transcript.num_tokens)
            if given:
                batch.books.resume(returned=previous == instance.name)
            placement.begin(self._ledger.next_request(), instance.name, instance.pages)
            if transcript.num_tokens:
                batch.books.prefill_again(max(0, transcript.length - given - placement.spared))
        instance.hold(rollouts, now)
        self._roster.watch(instance)
        for previous, tokens in moved.items():
            batch.books.migrate(len(tokens))
            self._outbox.record(
                "migrated",
                instance.name,
                **{"from": previous, "to": instance.name},
                count=len(tokens),
                tokens=sum(tokens),
            )
        if instance.activity.given_work():
            self._outbox.record("working", instance.name, count=len(rollouts))
        requests: list[GenerateRequest] = []
        texts: list[PromptText] = []
        size = 0
        for rollout in rollouts:
            earlier = self._drafts.texts(batch, instance, rollout) if self._drafts else []
            texts += [PromptText(request=len(requests), tokens=text) for text in earlier]
            requests.append(rollout.request())
            size += 4 * rollout.transcript.length + sum(map(len, earlier))
            full = size >= GENERATE_BYTES or len(texts) > MAX_TEXTS - TEXTS
            if full or rollout is rollouts[-1]:
                digest = batch.begin.params_digest
                self._outbox.send(instance.stream, saying_once(digest, requests, texts))
                requests, texts, size = [], [], 0

    def release(self, instance: Instance, rollouts: Iterable[Rollout], now: float) -> None:
        """Ask an instance to release rollouts; they wait again once it has answered."""
        asked = [r for r in rollouts if not r.placement.releasing]
        if asked:
            instance.release(asked, now)
            ids = pack_ids([r.placement.request_id for r in asked])
            self._outbox.send(instance.stream, Release(request_ids=ids))
            self._roster.watch(instance)

    def release_cancelled(self, now: float) -> None:
        """Release the rollouts of abandoned batches from all instances."""
        for instance in self._roster:
            self.release(instance, [r for r in instance.held.values() if r.batch.cancelled], now)

    def put_back(self, instance: Instance, request_ids: Iterable[int]) -> int:
        """Queue rollouts that an instance no longer holds, with the tokens they have.

        Without migration they begin anew: what most systems do, and worth comparing with.
        """
        back = [instance.let_go(request_id) for request_id in request_ids]
        wait = [r for r in back if r is not None and not r.finished and not r.batch.cancelled]
        if not self._migration:
            for batch in dict.fromkeys(r.batch for r in wait):
                begun = (r for r in wait if r.batch is batch and r.sequences.begun)
                self._ledger.redo(batch, dict.fromkeys(begun, 0))
        for rollout in wait:
            rollout.batch.wait(rollout)
        return len(wait)

    def redo(self, disputed: Iterable[Rollout], blamed: Collection[str], now: float) -> None:
        """Discard what blamed instances sampled, to have it sampled again: in disputed responses,
        in unfinished ones, and in those that measure the policy. The learner checks all other
        finished responses.

        Those that measure are withdrawn, and what stays of them is said again."""
        batches = self._ledger.open.values()
        rollouts = [rollout for batch in batches for rollout in batch.rollouts]
        suspects = [r for r in rollouts if not r.finished or r.measures]
        cuts: dict[Rollout, int] = {}
        for rollout in (*disputed, *suspects):
            length = min(rollout.sequences.first_of(name) for name in blamed)
            if length < rollout.sequences.num_tokens:
                cuts[rollout] = length
        withdrawn = [r for r in cuts if r.finished and r.measures]
        for batch in dict.fromkeys(r.batch for r in withdrawn):
            samples = pack_ids([r.sample for r in withdrawn if r.batch is batch])
            self._outbox.of_batch(ResponsesWithdrawn(batch=batch.begin.batch, samples=samples))
        taken: list[Rollout] = []
        for instance in self._roster:
            held = [r for r in instance.held.values() if r in cuts]
            self.release(instance, held, now)
            for rollout in held:  # at once: what comes of it now goes on from wrong tokens
                instance.let_go(rollout.placement.request_id)
            taken += held
        for batch in dict.fromkeys(r.batch for r in cuts):
            self._ledger.redo(batch, {r: n for r, n in cuts.items() if r.batch is batch})
        for rollout in taken:
            rollout.batch.wait(rollout)
        for rollout in withdrawn:
            for result in rollout.results:
                self._outbox.of_sample(result)

    def record_usage(self, instance: Instance) -> None:
        """Record the work of an instance since the last record."""
        usage = instance.activity.take_usage()
        if usage.tokens:
            reserved = instance.reserved
            self._outbox.record("worked", instance.name, reserved=reserved, **usage.values())
