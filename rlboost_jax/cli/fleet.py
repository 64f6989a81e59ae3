"""Find rollout servers that runs have left, and end them.

    rlboost fleet list runs/gsm8k runs/other      of these runs: who still runs, or waits to
    rlboost fleet reap runs/gsm8k                 end them; not those of a run that is alive
    rlboost fleet reap runs/gsm8k --all           and those of all other runs in the same place

A run ends its servers itself, killed or not: its next manager finds them, and without one they end
after fleet.orphan_seconds. This is for what is left where nobody comes back: jobs that wait in a
queue, machines whose server never came up, and credentials that stand somewhere for servers. Asks
the provider of each run, as its config.json has it. Exit status: 0 where nothing is left, or all of
it ended; 1 where something is, 2 on a mistake.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlboost_jax.platform import command_parser
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.providers.base import Provider, Rendezvous
from rlboost_jax.providers.launcher import Job, Keeper, Kept, Launcher, LaunchFailed
from rlboost_jax.providers.provider_choice import open_launcher, open_provider
from rlboost_jax.settings.config_loading import read_run_config, read_run_id
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.pool_fleets import fleet_of
from rlboost_jax.trust.run_files import AlreadyManaged, join_folder, only_manager

ANSWER_SECONDS = 90.0  # for a provider to list what there is
END_SECONDS = 150.0  # for what is ended to be gone
FIRST_LOOK_SECONDS, LOOK_SECONDS = 0.05, 1.0  # the pause between two doubles up to the second
LEFT = 1  # exit code


@dataclass(frozen=True)
class RunFleet:
    """A run, and a place where its servers are started."""

    workdir: Path
    run_id: str
    fleet: FleetConfig
    pool: str = ""  # of several; "": it has one
    pools: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.workdir}" + (f" ({self.pool})" if self.pool else "")

    @property
    def rendezvous(self) -> Rendezvous:
        """Return a rendezvous without an address: nothing is started with it."""
        return Rendezvous(
            run_id=self.run_id,
            workdir=self.workdir,
            address="",
            local_address="",
            join=join_folder(self.workdir),
            pool=self.pool,
            pools=self.pools,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser.parser("fleet", __doc__)
    parser.add_argument("action", choices=("list", "reap"))
    parser.add_argument("workdirs", nargs="+", type=Path, metavar="WORKDIR", help="of a run")
    parser.add_argument(
        "--all", action="store_true", help="reap what runs that are not named have left, too"
    )
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    try:
        places = [place for workdir in args.workdirs for place in _places(workdir)]
        with contextlib.ExitStack() as locks:
            if args.action == "reap":  # and no manager can come while they are ended
                for workdir in dict.fromkeys(place.workdir for place in places):
                    locks.enter_context(only_manager(workdir))
            return asyncio.run(_look(places, reap=args.action == "reap", others=args.all))
    except AlreadyManaged as error:
        print(f"{error}; end the run first, it takes its servers with it", file=sys.stderr)
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 2


async def _look(places: Iterable[RunFleet], *, reap: bool, others: bool) -> int:
    opened = [(place, open_launcher(place.fleet, place.rendezvous)) for place in places]
    left = 0
    for place, launcher in opened:
        provider = open_provider(place.fleet, place.rendezvous) if reap else None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if launcher or not provider:  # or it says why not, where a provider goes on trying
                    names = await _seen(place, launcher)
                if provider:
                    names = await _adopted(provider)
                kept = await _kept(place, launcher)
        except (LaunchFailed, TimeoutError) as error:
            why = f": {error}" if str(error) else ""
            print(f"{place.title}: its provider ({place.fleet.provider}) does not answer{why}")
            left += 1
            continue
        for name in (*names, *(f"{each.what} {each.handle}" for each in kept)):
            print(f"{place.title}  {name}")
        if not names and not kept:
            print(f"{place.title}  nothing is left ({place.fleet.provider})")
        elif provider:
            left += await _end(place, provider, launcher, len(names) + len(kept))
        else:
            left += len(names) + len(kept)
    return LEFT if left + await _others(opened, reap=reap and others) else 0


async def _adopted(provider: Provider) -> list[str]:
    return [each.name for each in await provider.list()]


async def _seen(place: RunFleet, launcher: Launcher | None) -> list[str]:
    """List the servers of a run, which may be alive.

    The launcher is asked: a provider that adopts servers ends at once those that it did not request
    itself.
    """
    if launcher is None:
        return await _adopted(open_provider(place.fleet, place.rendezvous))
    own, run_id = place.rendezvous.owns, place.run_id
    jobs = await launcher.list()
    return [j.name for j in jobs if j.run == run_id and own(j.name) and j.state != "over"]


async def _kept(place: RunFleet, launcher: Launcher | None) -> list[Kept]:
    """List the resources of a run besides its servers."""
    found: Sequence[Kept] = await launcher.kept() if isinstance(launcher, Keeper) else ()
    return [each for each in found if each.run == place.run_id]


async def _end(place: RunFleet, provider: Provider, launcher: Launcher | None, count: int) -> int:
    """End the adopted servers; returns how many cannot be confirmed as gone."""
    await provider.close()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            left = len(await _seen(place, launcher)) + len(await _kept(place, launcher))
    except (LaunchFailed, TimeoutError):
        left = count
    print(f"{place.title}  {count - left} ended")
    return left


async def _others(opened: Sequence[tuple[RunFleet, Launcher | None]], *, reap: bool) -> int:
    """Count servers, in the same places, of runs that were not named."""
    known, seen, left = {place.run_id for place, _ in opened}, set[tuple[str, str]](), 0
    for launcher in (launcher for _, launcher in opened if launcher is not None):
        try:
            found = await _living(launcher, known)
            for job in found:
                if (job.run, job.handle) not in seen:
                    seen.add((job.run, job.handle))
                    print(f"of another run, {job.run}  {job.name} ({job.handle})")
            if reap and found:
                for job in found:
                    with contextlib.suppress(LaunchFailed):  # it is seen to be there still
                        await launcher.stop(job, 0.0)
                async with asyncio.timeout(END_SECONDS):
                    pause = FIRST_LOOK_SECONDS
                    while await _living(launcher, known):
                        await asyncio.sleep(pause)
                        pause = min(2 * pause, LOOK_SECONDS)
                print(f"of other runs  {len(found)} ended")
            left += await _others_kept(launcher, known, seen, discard=reap)
        except (LaunchFailed, TimeoutError) as error:
            print(f"of other runs: {str(error) or 'they do not end'}")
            left += 1
    return left


async def _others_kept(
    launcher: Launcher, known: Container[str], seen: set[tuple[str, str]], *, discard: bool
) -> int:
    """Print resources of runs other than those known; returns how many should not exist."""
    if not isinstance(launcher, Keeper):
        return 0
    left = 0
    for each in await launcher.kept():
        if each.run in known or (each.run, each.handle) in seen:
            continue
        seen.add((each.run, each.handle))
        print(f"of another run, {each.run}  {each.what} {each.handle}")
        if discard:
            try:
                await launcher.discard(each)
            except LaunchFailed as error:
                print(f"{each.handle} cannot be removed: {error}")
                left += 1
    return left


async def _living(launcher: Launcher, known: Container[str]) -> list[Job]:
    """List jobs that live of runs other than those known."""
    found = await launcher.list()
    return [job for job in found if job.run not in known and job.state != "over"]


def _places(workdir: Path) -> list[RunFleet]:
    """List the places of a run's pools."""
    workdir = workdir.absolute()
    run_id, fleet = read_run_id(workdir), read_run_config(workdir).fleet
    if not fleet.pools:
        return [RunFleet(workdir, run_id, fleet)]
    names = tuple(pool.name for pool in fleet.pools)
    return [RunFleet(workdir, run_id, fleet_of(fleet, p), p.name, names) for p in fleet.pools]


if __name__ == "__main__":
    sys.exit(main())
