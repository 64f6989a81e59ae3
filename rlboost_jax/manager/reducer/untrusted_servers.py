"""Doubts raised by the learner: the samplers are quarantined and other instances sample again."""

from rlboost_jax.manager.reducer.batch_checks import ProtocolError
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.messages import Doubt, checksum, unpack_ids


class UntrustedServers:
    def __init__(self, owners: Owners, placements: Placements, servers: Servers) -> None:
        self._roster = owners.roster
        self._placements = placements
        self._servers = servers
        self._outbox = owners.outbox

    def hear(self, batch: BatchRecord, message: Doubt, now: float) -> None:
        """Quarantine the servers that sampled the tokens, and have their unproved work done again.

        The trainer has thrown away all sequences of a doubted response: the ones that remain are
        delivered again, in order. So are those of a response whose doubt means an older attempt,
        or one of the same number that a manager before has delivered and not written down.

        Raises:
            ProtocolError: no such response was delivered, or an engine of the trainer's own
                sampled it.
        """
        disputed: dict[Rollout, None] = {}
        again: dict[Rollout, None] = {}
        blamed: dict[str, None] = {}
        try:
            samples = unpack_ids(message.samples).tolist()
            for sample, attempt, position, sequence, meant in zip(
                samples,
                unpack_ids(message.attempts).tolist(),
                unpack_ids(message.positions).tolist(),
                unpack_ids(message.sequences).tolist() or [0] * len(samples),
                unpack_ids(message.checksums).tolist() or [None] * len(samples),
                strict=True,
            ):
                rollout = batch.rollout_of(sample)
                if rollout is None:
                    continue
                again[rollout] = None
                results = rollout.results
                if sequence >= len(results):
                    continue  # it is being generated again already
                result = results[sequence]
                same = meant is None or meant == checksum(result.tokens, result.logprobs)
                if same and result.attempt == attempt:
                    disputed[rollout] = None
                    place = rollout.sequences.locate(sequence, position)
                    blamed[rollout.sequences.sampler_of(place)] = None
        except (ValueError, IndexError) as error:
            raise ProtocolError(f"a doubt that fits no response: {error}") from None
        own = [name for name in blamed if name in self._roster.own]
        others = [name for name in blamed if name not in own]
        for name in others:
            reason = (
                f"its log-probabilities are {message.gap:.3g} nats from the learner's, its choices "
                f"{message.choice_gap:.3g} from those of its noise"
            )
            self._servers.quarantine(name, reason, now)
        if others:
            self._placements.redo(disputed, others, now)
        for rollout in again:
            for result in rollout.results:
                self._outbox.of_sample(result)
        if own:
            raise ProtocolError(
                f"the trainer's own engine {own[0]!r} and its learner are {message.gap:.3g} nats "
                f"and {message.choice_gap:.3g} of a choice apart; raise learner.tolerated_gap, or "
                "look for a fault of this host"
            )
