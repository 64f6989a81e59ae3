"""What an engine has on its devices, and the launching of programs on it.

Programs take the KV pools by donation and give them back: the caller puts the new ones in the
place of the old. A launch returns before the device is done.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import jax
import numpy as np
from numpy.typing import NDArray

from rlboost_jax.engine import invariance, step_inputs
from rlboost_jax.engine.dispatches import pack, prefilled_slots
from rlboost_jax.engine.engine_parameters import EngineParameters
from rlboost_jax.engine.program_plans import ProgramPlan
from rlboost_jax.engine.routes import DispatchRoutes, ProgramYield, Routes
from rlboost_jax.engine.step_programs import Output, Programs
from rlboost_jax.settings.routing import Routing


class DeviceState:
    """Arrays of an engine on its devices, and its programs.

    Attributes:
        pools: keys and values, by layer.
        ends: of the rows of the last decode steps, which the steps that follow them read.
    """

    def __init__(
        self, programs: Programs, parameters: EngineParameters, routing: Routing | None
    ) -> None:
        """Allocate the pools. Nothing is compiled yet."""
        self.programs, self.parameters = programs, parameters
        self.pools = programs.empty_pools()
        self.ends = programs.no_ends()
        self._layout = programs.layout
        self._routes = Routes(programs.layout, routing) if routing else None

    def warm_up(self, announce: Callable[[str], None]) -> None:
        """Compile every program by running it on nothing, on zeros if nothing is loaded.

        Args:
            announce: called with a line on each, before it is compiled or read from a cache.
        """
        programs, layout = self.programs, self._layout
        leaves = self.parameters.leaves_or_zeros()
        count = 2 + len(layout.decode_rows) + len(layout.verified_rows)
        announce(f"preparing the mixed step (1 of {count})")
        empty = step_inputs.pack_mixed(layout, ())
        self.pools, output = programs.mixed(leaves, self.pools, empty)
        output.sampled.block_until_ready()
        for i, rows in enumerate(layout.decode_rows):
            announce(f"preparing the decode steps of {rows} rows ({2 + i} of {count})")
            empty = step_inputs.pack_decode(layout, (), 0, rows=rows)
            self.pools, output, _ = programs.decode(leaves, self.pools, empty, self.ends)
            output.sampled.block_until_ready()
        for i, rows in enumerate(layout.verified_rows):
            announce(
                f"preparing drafts in {rows} rows ({2 + len(layout.decode_rows) + i} of {count})"
            )
            empty = step_inputs.pack_verify(layout, (), 0, rows=rows)
            texts = np.full((layout.drafted_for(rows), layout.text_tokens), -1, np.int32)
            self.pools, output = programs.verify(leaves, self.pools, empty, texts)
            output.sampled.block_until_ready()
        announce(f"preparing the copying of pages ({count} of {count})")
        self.pools = programs.copy_pages(self.pools, step_inputs.pack_copies(layout, ()))
        jax.block_until_ready(self.pools)

    @property
    def pool_bytes(self) -> int:
        """Bytes of all KV pools on all devices at their current size."""
        return sum([pool.nbytes for pool in self.pools])

    def resize(self, num_pages: int, moves: Mapping[int, int] = MappingProxyType({})) -> None:
        """Replace the pools by ones of `num_pages` pages; freed memory is available on return.

        A layer's old pool goes before the next layer's new one comes: at no time is there more than
        the larger of both sizes and one layer. Nothing is in flight.

        Args:
            num_pages: 0: no pool at all; what was in it is lost.
            moves: pages that are needed still, and where they go; all others stay or are lost.
        """
        if num_pages == 0 or not self.pools:
            self._drop_pools()
            self.pools = self.programs.empty_pools(num_pages) if num_pages else ()
            jax.block_until_ready(self.pools)
            return
        sources = np.minimum(np.arange(num_pages), self.pools[0].shape[0] - 1).astype(np.int32)
        sources[list(moves.values())] = list(moves)
        old, self.pools = list(reversed(self.pools)), ()
        while old:
            layer = self.programs.take_pages(old[-1], sources).block_until_ready()
            old.pop().delete()
            self.pools += (layer,)
        if self._routes is not None:
            self._routes.move(moves)

    def _drop_pools(self) -> None:
        for pool in self.pools:
            pool.delete()
        self.pools = ()

    def assert_row_invariance(self) -> str:
        """Check row invariance, overwriting the pages; return a digest.

        Uses the loaded weights, or random ones.

        Raises `RowsNotInvariant` if companions, slots or chunks change a bit.
        """
        leaves = self.parameters.leaves_or_random()
        self.pools, bits = invariance.check(self.programs, leaves, self.pools, self.ends)
        return bits

    def launch(self, plan: ProgramPlan) -> Output:
        """Copy the pages that the plan wants copied, then launch its program."""
        leaves, layout = self.parameters.leaves, self._layout
        if plan.copies:
            copies = step_inputs.pack_copies(layout, plan.copies)
            self.pools = self.programs.copy_pages(self.pools, copies)
        packed = pack(layout, plan, self.programs.max_steps)
        kv_slots = np.zeros(0, np.int32)  # of the routes that pages get
        if plan.texts is not None:
            self.pools, output = self.programs.verify(leaves, self.pools, packed, plan.texts)
            if plan.mixed:
                kv_slots = prefilled_slots(layout, plan)
        elif plan.mixed:
            self.pools, output = self.programs.mixed(leaves, self.pools, packed)
            kv_slots = step_inputs.kv_slots(layout, packed)
        else:
            self.pools, output, self.ends = self.programs.decode(
                leaves, self.pools, packed, self.ends
            )
        if self._routes is not None and (plan.mixed or plan.copies):
            self._routes.launched(plan.copies, kv_slots, output.row_routes)
        return output

    def routes(
        self, plan: ProgramPlan, output: Output, counts: NDArray[np.int_], yielding: Sequence[int]
    ) -> DispatchRoutes | None:
        """Expert routes of the oldest unread program's tokens; None if no routes are kept.

        Args:
            counts: tokens of each row of the plan's work.
            yielding: rows with at least one.
        """
        if self._routes is None:
            return None
        return self._routes.finished(
            [ProgramYield(plan.work[i].rollout, i, int(counts[i])) for i in yielding],
            None if output.routes is None else np.asarray(output.routes),
        )
