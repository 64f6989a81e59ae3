"""Exchange between the processes of a trainer from threads beside the steps.

No devices take part, as they do in collectives, which all threads of all processes would have to
begin in one order. The coordinator of `jax.distributed` keeps what each says until the next time.
"""

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import jax
from jax._src import distributed  # the coordinator's client has no public name

from rlboost_jax.platform import foreign_json

WAIT_MILLISECONDS: Final = 24 * 3600 * 1000  # who dies meanwhile is missed long before

T = TypeVar("T")


class OtherFailed(RuntimeError):
    """Another process of the trainer could not do its part."""


class Bulletin:
    """Exchange used by one thread at a time, in the same order in all processes.

    Args:
        subject: that no other bulletin of these processes has.
    """

    def __init__(self, subject: str) -> None:
        self._subject, self._before = subject, ""
        self.index, self.count = jax.process_index(), jax.process_count()

    def together(self, name: str, part: Callable[[], T]) -> list[T]:
        """Run this process's part; return the results of all processes, in their order.

        Args:
            name: that is used once.
            part: returns what JSON can hold.

        Raises:
            OtherFailed: `part` raised in another process; in this one its error is raised.
        """
        if self.count == 1:
            return [part()]
        failure: Exception | None = None
        mine: dict[str, Any] = {}
        try:
            mine = {"value": part()}
        except Exception as error:  # the others have to hear of it, whatever it is
            failure, mine = error, {"fault": str(error) or type(error).__name__}
        said = self._exchanged(name, mine)
        if failure is not None:
            raise failure
        for index, each in enumerate(said):
            if "fault" in each:
                raise OtherFailed(f"process {index} of {self.count}: {each['fault']}")
        return [each["value"] for each in said]

    def _exchanged(self, name: str, value: Any) -> list[Any]:
        client, place = distributed.global_state.client, f"rlboost/{self._subject}/{name}"
        assert client is not None, "several processes have met"
        client.key_value_set(f"{place}/{self.index}", json.dumps(value))
        client.wait_at_barrier(place, WAIT_MILLISECONDS)
        if self.index == 0 and self._before:  # all have come here, and so have read it
            client.key_value_delete(self._before)
        self._before = place
        return [
            foreign_json.decode(
                client.blocking_key_value_get(f"{place}/{index}", WAIT_MILLISECONDS), place, dict
            )
            for index in range(self.count)
        ]
