"""Rollouts go to instances and come back: what is done once it is chosen which.

A released rollout waits again as soon as its server has answered, with the tokens it
has; one whose server is lost waits again at once.
"""

from collections.abc import Collection, Iterable, Sequence

from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.messages import GenerateRequest, Release, Withdrawn, pack_ids, saying_once

GENERATE_BYTES = 8 * 2**20  # of tokens in one frame; more is split


class Placements:
    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._migration = settings.manager.migration
        self._outbox = owners.outbox
        self._ledger = owners.ledger
        self._roster = owners.roster

    def generate(
        self, batch: BatchRecord, instance: Instance, rollouts: Sequence[Rollout], now: float
    ) -> None:
        """These go to an instance."""
        moved: dict[str, list[int]] = {}
        for rollout in rollouts:
            if rollout.previous and rollout.previous != instance.name:
                moved.setdefault(rollout.previous, []).append(rollout.num_tokens)
            if rollout.newest_given:
                batch.books.resume(returned=rollout.previous == instance.name)
            given = rollout.newest_given
            rollout.place(self._ledger.next_request(), instance.name, instance.pages)
            if rollout.num_tokens:
                batch.books.prefill_again(max(0, rollout.length - given - rollout.spared))
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
        size = 0
        for rollout in rollouts:
            requests.append(rollout.request())
            size += 4 * rollout.length
            if size >= GENERATE_BYTES or rollout is rollouts[-1]:
                digest = batch.begin.params_digest
                self._outbox.send(instance.stream, saying_once(digest, requests))
                requests, size = [], 0

    def release(self, instance: Instance, rollouts: Iterable[Rollout], now: float) -> None:
        """Ask rollouts back; they wait again once the server has answered."""
        asked = [r for r in rollouts if not r.releasing]
        if asked:
            instance.release(asked, now)
            ids = pack_ids([r.request_id for r in asked])
            self._outbox.send(instance.stream, Release(request_ids=ids))
            self._roster.watch(instance)

    def release_cancelled(self, now: float) -> None:
        """Stop the work of batches that were abandoned, wherever it is."""
        for instance in self._roster:
            self.release(instance, [r for r in instance.held.values() if r.batch.cancelled], now)

    def put_back(self, instance: Instance, request_ids: Iterable[int]) -> int:
        """Rollouts that an instance no longer holds wait again, with the tokens they have.

        Without migration they begin anew: what most systems do, and worth comparing with.
        """
        back = [instance.let_go(request_id) for request_id in request_ids]
        wait = [r for r in back if r is not None and r.result is None and not r.batch.cancelled]
        if not self._migration:
            for batch in dict.fromkeys(r.batch for r in wait):
                begun = (r for r in wait if r.batch is batch and r.begun)
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
        suspects = [r for r in rollouts if r.result is None or r.measures]
        cuts = {r: min(r.first_of(name) for name in blamed) for r in (*disputed, *suspects)}
        cuts = {r: length for r, length in cuts.items() if length < r.all_tokens}
        withdrawn = [r for r in cuts if r.result is not None and r.measures]
        for batch in dict.fromkeys(r.batch for r in withdrawn):
            samples = pack_ids([r.sample for r in withdrawn if r.batch is batch])
            self._outbox.of_batch(Withdrawn(batch=batch.begin.batch, samples=samples))
        taken: list[Rollout] = []
        for instance in self._roster:
            held = [r for r in instance.held.values() if r in cuts]
            self.release(instance, held, now)
            for rollout in held:  # at once: what comes of it now goes on from wrong tokens
                instance.let_go(rollout.request_id)
            taken += held
        for batch in dict.fromkeys(r.batch for r in cuts):
            self._ledger.redo(batch, {r: n for r, n in cuts.items() if r.batch is batch})
        for rollout in taken:
            rollout.batch.wait(rollout)
        for rollout in withdrawn:
            for result in rollout.results:
                self._outbox.of_sample(result)

    def record_usage(self, instance: Instance) -> None:
        """What it did since this was done last."""
        usage = instance.activity.take_usage()
        if usage.tokens:
            reserved = instance.reserved
            self._outbox.record("worked", instance.name, reserved=reserved, **usage.values())
