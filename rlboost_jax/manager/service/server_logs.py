"""Output of the servers, as they send it: `<workdir>/logs/said/<instance>.log`.

Bounded, whatever a server sends: a file that is full loses its older half, and of many files the
newest stay. Written in a thread; where the disk does not keep up, lines are dropped.
"""

import contextlib
import logging
import queue
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rlboost_jax.manager.events import Action, Event, FromServer, Send, ServerGone
from rlboost_jax.messages import Hello, Said, Welcome

FOLDER: Final = "said"  # below `logs`
MAX_BYTES: Final = 2**18  # of a file: thousands of lines; a server prints one a minute
MAX_WAITING: Final = 1_000  # writes
FULL: Final = "… older lines were removed\n"

RemoveOld = Callable[[Path, Container[str]], None]

log = logging.getLogger(__name__)


class ServerLogs:
    """Observer that writes the servers' output, see `manager_driver.Watch`.

    Args:
        remove_old: takes the folder and the names whose files are in use; called as one is added.
        max_bytes: of a file.
    """

    def __init__(
        self,
        workdir: Path,
        remove_old: RemoveOld,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._folder, self._max_bytes = workdir / "logs" / FOLDER, max_bytes
        self._remove_old = remove_old
        self._names: dict[int, str] = {}  # of living streams
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="logs of servers")
        self._waiting: queue.Queue[None] = queue.Queue(MAX_WAITING)

    def __call__(self, event: Event, actions: Sequence[Action], began: float, ended: float) -> None:
        match event:
            case FromServer(stream, Said() as said) if name := self._names.get(stream):
                dropped = [f"… {said.dropped} lines were dropped"] if said.dropped else []
                self._later(name, [*dropped, *said.lines])
            case FromServer(stream, Hello()):
                for action in actions:
                    if isinstance(action, Send) and isinstance(action.message, Welcome):
                        self._names[action.stream] = action.message.instance
            case ServerGone(stream):
                self._names.pop(stream, None)

    def close(self) -> None:
        """Write what is still queued."""
        self._disk.shutdown()

    def _later(self, name: str, lines: Sequence[str]) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._disk.submit(self._write, name, lines)

    def _write(self, name: str, lines: Sequence[str]) -> None:
        path = self._folder / f"{name}.log"
        try:
            if not path.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._remove_old(self._folder, set(self._names.values()))
            added = "".join(f"{line}\n" for line in lines)
            if path.exists() and path.stat().st_size + len(added) > self._max_bytes:
                kept = path.read_bytes()[-self._max_bytes // 2 :].partition(b"\n")[2]
                path.write_bytes(FULL.encode() + kept)
            with path.open("a", encoding="utf-8") as file:
                file.write(added)
        except OSError as error:
            log.warning("lines of %s are lost: %s", name, error)
        finally:
            self._waiting.get_nowait()
