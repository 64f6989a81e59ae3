"""Earlier responses to a prompt, for the instances that sample it now (DAS, arXiv:2511.13841).

They travel with the first request of a prompt to each instance, so that its first response there
has drafts already, when no sibling has any text. A server says in its Hello whether it wants them.
"""

from rlboost_jax.manager.state.epoch_texts import EpochTexts, SentTexts
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout


class EpochDrafts:
    """What is sent of which earlier response, and to whom."""

    def __init__(self, ledger: Ledger, most_tokens: int) -> None:
        """
        Args:
            most_tokens: see `EpochTexts`.
        """
        self._ledger = ledger
        self._texts = EpochTexts(most_tokens)
        self._sent: dict[BatchRecord, SentTexts] = {}

    def learn(self, batch: BatchRecord) -> None:
        """Keep responses of a batch that was trained."""
        self._texts.learn(batch)

    def texts(self, batch: BatchRecord, instance: Instance, rollout: Rollout) -> list[bytes]:
        """Return what goes with the request for a rollout; to be called once a request."""
        stream, group, sent = instance.stream, rollout.group, self._of(batch)
        if not instance.hello.text_tokens or sent.has(stream, group):
            return []
        prompt, spent = rollout.transcript.prompt, sent.num_bytes(group)
        texts = list(self._texts.of(prompt, instance.name, spent))
        sent.send(stream, group, sum(map(len, texts)))
        return texts

    def _of(self, batch: BatchRecord) -> SentTexts:
        if batch not in self._sent:
            others = {b: sent for b, sent in self._sent.items() if self._ledger.works_on(b)}
            self._sent = {**others, batch: SentTexts()}
        return self._sent[batch]
