"""How long an engine and a learner take: rooflines of a stated chip, or a measured table.

A decode step reads all weights and every cached key and value once, and multiplies each
sequence with all weights; whichever takes longer is its time (Williams et al. 2009, the
roofline model). Embedding look-ups are counted as products, which overstates small models.
"""

import bisect
import copy
import math
from collections.abc import Sequence

from rlboost_jax.simulator.row_clocks import PLAIN
from rlboost_jax.simulator.sim_config import SimConfig


class EngineRates:
    """Speeds of one engine on `config.engine.chips` chips. Times in seconds."""

    def __init__(self, config: SimConfig, *, reserved: bool = False) -> None:
        chip, engine, model = config.chip, config.engine, config.model
        bandwidth = engine.chips * chip.memory_bytes_per_second * engine.memory_efficiency
        flops = engine.chips * chip.flops_per_second * engine.compute_efficiency
        kv_bytes = 2 * model.num_layers * model.num_key_heads * model.head_dim * model.bytes_per_kv
        memory = engine.chips * chip.memory_bytes * engine.memory_fraction
        self.kv_tokens = int((memory - config.weight_bytes) / kv_bytes)  # that the cache holds
        slots = (engine.reserved_slots if reserved else 0) or engine.slots
        if engine.reserve_ratio:
            work = config.workload
            each = work.prompt_tokens + engine.reserve_ratio * work.max_response_tokens
            slots = max(1, min(slots, int(self.kv_tokens / each)))
        self.slots = slots
        self._product = 2 * model.num_params / flops  # with all weights, of one token
        self.prefill_seconds = engine.prefill_token_seconds or self._product  # of one token
        self.slowness = 1.0  # times a usual engine's seconds
        self.most_drafts = engine.most_drafts  # of a sequence, in a step
        self._acceptances = engine.draft_acceptances or (engine.draft_acceptance,)
        # Shares of the acceptance, by clock of `row_clocks`.
        self.shares = engine.draft_recent, 1.0, engine.draft_beyond, engine.draft_earlier
        self._token_rows = engine.token_rows
        self._draft_seconds = engine.draft_seconds
        self._overhead = engine.step_overhead_seconds
        self._weights = config.weight_bytes / bandwidth
        self._per_context = kv_bytes / bandwidth
        table = (engine.reserved_table if reserved else ()) or engine.table
        self._table = StepTable(table) if table else None
        longest = config.workload.slot_tokens
        self._line = self._table.line(longest) if self._table else (0.0, 0.0)

    def slowed(self, factor: float) -> "EngineRates":
        """Return the rates of an engine that takes `factor` times as long for everything."""
        slow = copy.copy(self)
        slow.slowness = factor
        slow.prefill_seconds = factor * self.prefill_seconds
        return slow

    def step_seconds(self, batch: int, context: float, *, drafts: int = 0) -> float:
        """Seconds of a decode step of `batch` sequences that hold `context` tokens together.

        Args:
            drafts: that they carry. A table has the products of their rows already: its programs
                compute `token_rows` rows, whatever the batch.
        """
        more = self._draft_seconds if drafts else 0.0
        if self._table is not None:
            return self.slowness * (self._table.seconds(batch, context / batch) + more)
        memory = self._weights + self._per_context * context
        arithmetic = self._product * (batch + drafts)
        return self.slowness * (self._overhead + more + max(memory, arithmetic))

    def paces(
        self, counts: Sequence[int], context: float, version: int = 0, *, recent: bool = False
    ) -> tuple[int, list[float]]:
        """Drafts of a decode step, and the tokens that a rollout of each clock samples in it.

        Those with drafts have equally many: rows that all others leave free, and as many of them as
        make most tokens per second, which is all but where rows cost. Rollouts without a text of
        their prompt have drafts where that is faster than to leave their rows to the others.

        Args:
            counts: rollouts, by clock of `row_clocks`.
            version: that samples.
            recent: whether there are responses to other prompts.
        """
        batch, plain = sum(counts), counts[PLAIN]
        best, fastest = (0, [1.0] * len(counts)), batch / self.step_seconds(batch, context)
        usable = plain if recent and self.shares[PLAIN] else 0
        for others in {0, usable}:
            drafting = batch - plain + others
            free = max(0, self._token_rows - batch)
            for width in range(1, min(self.most_drafts, free // max(1, drafting)) + 1):
                if not drafting:
                    break
                paces = [
                    self.tokens_a_step(width, version, share=share) if n else 1.0
                    for n, share in zip(counts, self.shares, strict=True)
                ]
                paces[PLAIN] = paces[PLAIN] if others else 1.0
                tokens = sum([n * pace for n, pace in zip(counts, paces, strict=True)])
                speed = tokens / self.step_seconds(batch, context, drafts=width * drafting)
                if speed > fastest:
                    best, fastest = (width * drafting, paces), speed
        return best

    def tokens_a_step(self, drafts: int, version: int = 0, *, share: float = 1.0) -> float:
        """Expected tokens of a sequence with so many drafts, each right with the same chance.

        1 + p + … + pᵈ (Leviathan et al. 2023, arXiv:2211.17192, equation 1).

        Args:
            version: that samples.
            share: of the acceptance.
        """
        acceptance = share * self._acceptances[min(version, len(self._acceptances) - 1)]
        return math.fsum(acceptance**count for count in range(drafts + 1))

    @property
    def step_line(self) -> tuple[float, float]:
        """Line below all decode steps: seconds of one step, and of each token it reads.

        Of a step that yields one token of each sequence: where drafts make that several, a share
        of a step.
        """
        best = max(range(len(self._acceptances)), key=lambda version: self._acceptances[version])
        share = self.slowness / self.tokens_a_step(self.most_drafts, best)
        if self._table is not None:
            return share * self._line[0], share * self._line[1]
        return share * (self._overhead + self._weights), share * self._per_context


class StepTable:
    """Measured decode steps on a grid of batches and contexts.

    They are linear in between; beyond the grid they are as at its edge, in proportion to the batch.

    Raises ValueError where the rows are no grid.
    """

    def __init__(self, rows: Sequence[tuple[float, float, float]]) -> None:
        self._batches = sorted({batch for batch, _, _ in rows})
        self._contexts = sorted({context for _, context, _ in rows})
        known = {(batch, context): seconds for batch, context, seconds in rows}
        size = len(self._batches) * len(self._contexts)
        if len(known) != size or len(rows) != size:
            raise ValueError(
                f"{len(rows)} rows for {len(self._batches)} batches and "
                f"{len(self._contexts)} contexts; give each pair once"
            )
        self._seconds = [[known[b, c] for c in self._contexts] for b in self._batches]

    def line(self, longest: float) -> tuple[float, float]:
        """Line below all steps: seconds of one, and of each token that it reads.

        Between points that are above a·1 + b·(batch · context) so is what is interpolated, for
        that is linear in each of the two. Before the grid it is as at its edge, and more than
        there; beyond, batches are in proportion, but contexts are not.

        Args:
            longest: context that there may be.
        """
        least = min(map(min, self._seconds))
        if self._contexts[-1] < longest:
            return least, 0.0
        slopes = [
            (seconds - least) / (batch * context)
            for batch, row in zip(self._batches, self._seconds, strict=True)
            for context, seconds in zip(self._contexts, row, strict=True)
            if batch * context > 0
        ]
        return least, min(slopes, default=0.0)

    def seconds(self, batch: float, context: float) -> float:
        first, share = _place(self._batches, batch)
        column, part = _place(self._contexts, context)
        low, high = self._seconds[first], self._seconds[min(first + 1, len(self._seconds) - 1)]
        at = [row[column] + part * (row[min(column + 1, len(row) - 1)] - row[column])
              for row in (low, high)]  # fmt: skip
        seconds = at[0] + share * (at[1] - at[0])
        return seconds * max(1.0, batch / self._batches[-1])


def train_seconds(config: SimConfig, lengths: Sequence[int]) -> float:
    """Learner time for sequences of `lengths` tokens, prompts included: measured, or by FLOPs.

    A forward pass takes 2 FLOPs per parameter and token, and 2 per layer, query width and pair
    of a token with one before it, twice (Kaplan et al. 2020, arXiv:2001.08361, table 1).
    """
    model, reserved, chip = config.model, config.reserved, config.chip
    tokens = sum(lengths)
    pairs = sum(length * length for length in lengths) / 2
    if config.trainer.token_seconds:
        return config.trainer.token_seconds * tokens + config.trainer.pair_seconds * pairs
    width = model.num_query_heads * model.head_dim
    forward = 2 * model.num_params * tokens + 4 * model.num_layers * width * pairs
    rate = reserved.nodes * reserved.chips_per_node * chip.flops_per_second
    passes, efficiency = config.trainer.forward_passes, config.trainer.compute_efficiency
    return passes * forward / (rate * efficiency)


def _place(grid: Sequence[float], value: float) -> tuple[int, float]:
    """Index of the grid point before a value, and how far it is towards the next, in [0, 1]."""
    index = min(max(0, bisect.bisect_right(grid, value) - 1), max(0, len(grid) - 2))
    if len(grid) == 1:
        return 0, 0.0
    share = (value - grid[index]) / (grid[index + 1] - grid[index])
    return index, min(1.0, max(0.0, share))
