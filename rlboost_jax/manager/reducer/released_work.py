"""Unfinished work that servers return."""

from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.messages import Released, unpack_ids


class ReleasedWork:
    def __init__(self, settings: Settings, placements: Placements) -> None:
        self._settings = settings
        self._placements = placements

    def take(self, instance: Instance, message: Released, now: float) -> str:
        """Queue the rollouts a server no longer holds. Returns the mistake in its message, or "".

        To give back what one was asked for is progress. What nobody asked for comes of an engine
        that has just loaded, and is none.
        """
        try:
            request_ids = unpack_ids(message.request_ids).tolist()
        except ValueError:
            return "Released with a broken request id"
        back = [r for i in request_ids if (r := instance.held.get(i)) is not None]
        asked = any([rollout.placement.releasing for rollout in back])
        self._placements.put_back(instance, request_ids)
        if asked:
            instance.activity.progressed(now)
        elif back:
            instance.activity.bounce(now)
        return ""

    def useless(self, instance: Instance, now: float) -> str:
        """Why a server is useless that only returns work; "" as long as it may lack progress.

        It would be given the same work for ever: each time it would hold some anew.
        """
        activity = instance.activity
        patience = activity.patience(self._settings.manager.progress_seconds)
        if now < activity.bounced_at + patience:
            return ""
        return f"gave back all that it was given for {patience:.3g} s"
