"""The profile of one step: all processes on one time axis, in `<workdir>/profile`.

Every process records its own spans: the manager writes down its own and what servers send it,
the trainer keeps what it did itself, and puts it all together once the step after is over, when
the last of the others have come in.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rlboost_jax.observe.chrome_trace import (
    FOLDER,
    Doubtful,
    PlacedSpan,
    read_spans,
    spans_path,
    trace_path,
    write_trace,
)
from rlboost_jax.observe.clocks import RemoteClock
from rlboost_jax.observe.span_recorder import Recorder
from rlboost_jax.platform.closing import Closing
from rlboost_jax.settings.observe_config import ObserveConfig

JAX_FOLDER: Final = "jax"


class StepProfile(Closing):
    """Context manager around the steps of a run; does nothing unless a step is asked for.

    Args:
        note: shows a person a line.
    """

    def __init__(
        self, observe: ObserveConfig, workdir: Path, *, note: Callable[[str], None]
    ) -> None:
        self._step, self._jax = observe.profile_step, observe.profile_jax
        self._workdir, self._note = workdir, note
        self.spans = Recorder(self._step)  # of this process
        self.clock = RemoteClock()  # the manager's, seen from here; the link to it sets it
        self._before = False  # a step has been begun
        self._unwritten = False  # the one profiled has
        self._tracing = False

    def at(self, step: int) -> None:
        """Notify the profile of the next step; called before each."""
        self.spans.at(step)
        first, self._before = not self._before, True
        if step < self._step or (first and step == self._step):
            # Spans of a run that died in the step. Those from the step before on are the step's
            # own: servers pull the version that it samples from before it begins.
            spans_path(self._workdir, self._step).unlink(missing_ok=True)
        if self._step and step == self._step:
            self._unwritten = True
            if self._jax:
                self._start_jax()
            return
        self._stop_jax()
        if self._unwritten and step > self._step + 1:
            self._write()

    def close(self) -> None:
        """Write the profile, after the last step, once the manager has written all its spans."""
        self._stop_jax()
        if self._unwritten:
            self._write()

    def _write(self) -> None:
        self._unwritten = False
        own, dropped = self.spans.take()
        spans, doubts = read_spans(spans_path(self._workdir, self._step))
        moved, error = self.clock.moved(own)
        spans += [
            PlacedSpan(
                process="trainer",
                lane=span.lane,
                name=span.name,
                start=span.start,
                seconds=span.seconds,
                args=span.args,
            )
            for span in moved
        ]
        doubts["trainer"] = Doubtful(clock_error=error, dropped=dropped)
        path = trace_path(self._workdir, self._step)
        try:
            write_trace(path, spans, doubts, step=self._step)
        except OSError as error:
            self._note(f"step {self._step} was profiled in vain: {error}")
        else:
            self._note(
                f"the profile of step {self._step} is {path}; ui.perfetto.dev opens it"
                + _left_out(doubts)
            )

    def _start_jax(self) -> None:
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # at a span for each call the whole process stands still
        folder = self._workdir / FOLDER / JAX_FOLDER
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except Exception as error:  # its own, of many kinds; another trace may be under way
            self._note(f"jax.profiler traces nothing: {error}")
        else:
            self._tracing = True

    def _stop_jax(self) -> None:
        if self._tracing:
            import jax

            self._tracing = False
            try:
                jax.profiler.stop_trace()
            except Exception as error:  # as above; the run goes on
                self._note(f"jax.profiler left no trace: {error}")


def _left_out(doubts: Mapping[str, Doubtful]) -> str:
    """Text on processes whose spans are incomplete; "" if none is."""
    parts = [f"{doubt.dropped:,} of {name}" for name, doubt in doubts.items() if doubt.dropped]
    return f"; there was no room for spans: {', '.join(parts)}" if parts else ""
