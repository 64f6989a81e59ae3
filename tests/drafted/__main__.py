"""Train small runs with drafts, right and wrong ones, and compare them with runs without.

    python -m tests.drafted [--rows=0,3] [--folder=FOLDER] [--list]

A pairwise cover (`pairs.py`): each two values of drafter, fleet, devices, lag, numbers, parameters,
layers, tensor parallelism, truncation, turns and noise that go together occur in one run at least.
Digests of trajectories and parameters have to be those of a run of the same settings that has
neither drafts nor servers, update by update.

own        servers have their devices for themselves
shared     slots and memory of servers change all the time
calm       all servers live
chaos      in two steps, a server is killed, or asked to leave, a moment after it was at work
migration  all servers die while tokens of a dispatch with drafts are under way

Random tokens, texts of other prompts and drafts one place too early are given to the engines by
`tests/system/paced/drafting.py`, which also lets every decode step have drafts.

Exit status: 0 where all digests are equal, and in each run engines have drafted and right drafters
have had drafts accepted; 1 where not.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.drafted.pairs import FACTORS, Row, cover
from tests.system.harness import PATIENT, REPOSITORY, TINY, Run, complete, prepared
from tests.system.tenant import Tenant

COMMON = (
    *(
        "seed=11",
        "warmup.max_updates=100",
        "warmup.habit_updates=0",
        "evaluation.every_steps=0",
    ),
    *("learner.prompts_per_step=8", "learner.micro_batch_prompts=4", "algorithm.group_size=8"),
    *("algorithm.advantage=return", "algorithm.overlong_penalty=1.0"),
    *("algorithm.overlong_band=0.9", "engine.max_prompt_tokens=16"),
    *("model.embed_dim=32", "model.hidden_dim=64", "model.num_layers=2"),
    *("task.mean_length=8.0", "task.max_length=20", "engine.slots=4"),
)
_BFLOAT16 = ("model.dtype", "engine.kv_dtype", "weights.rollout_dtype")
_EXPERTS = ("model.num_experts=6", "model.experts_per_token=2", "model.expert_dim=32")
_ADAPTERS = ("model.lora.rank=4", "model.lora.targets=('q_proj','k_proj','v_proj','o_proj')")
SETTINGS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("lag", "0"): ("num_steps=3",),
    ("lag", "1"): ("num_steps=4", "algorithm.lag=1"),
    ("numbers", "bfloat16"): tuple(f"{name}=bfloat16" for name in _BFLOAT16),
    ("trained", "adapters"): _ADAPTERS,
    ("layers", "experts"): _EXPERTS,
    ("parallel", "2"): ("engine.tensor_parallel=2", "learner.mesh=(1,1,2)"),
    ("sampling", "truncated"): ("sampling.top_p=0.9", "sampling.top_k=20"),
    # Sampled so that some drafts are right and some are not.
    ("turns", "one"): ("sampling.max_response_tokens=48", "sampling.temperature=0.3"),
    ("turns", "several"): ("warmup.max_updates=0", "sampling.temperature=0.05"),
    ("noise", "tree"): ("sampling.noise=tree",),
}
ALL = "('siblings','prompt','recent','epochs')"
DRAFTERS: Mapping[str, str] = {
    "siblings": "('siblings',)",
    "prompt": "('prompt',)",
    "recent": "('recent',)",
    "epochs": "('prompt','epochs')",  # a prompt seldom comes again in so few steps
    "all": ALL,
}
# A policy that repeats itself: in good answers prompt lookup finds nothing.
REPEATING = ("warmup.max_updates=0", "sampling.temperature=0.05")
WRONG = ("random", "another", "short")
CALCULATING = REPOSITORY / "tests" / "system" / "calculating.py"
FIRST, SECOND = 1, 2  # versions in whose steps something happens


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to.

    Attributes:
        fault: what may not be; "" without one.
    """

    fault: str
    drafted: int
    accepted: int
    seconds: float


def flags_of(row: Row) -> tuple[str, ...]:
    """Settings that decide the digests."""
    flags = [*COMMON, *(flag for value in row.items() for flag in SETTINGS.get(value, ()))]
    return (*flags, *(REPEATING if row["drafter"] == "prompt" else ()))


def options_of(row: Row) -> dict[str, object]:
    """Arguments of `Run` for a row's settings."""
    devices = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = {"XLA_FLAGS": devices} if row["parallel"] == "2" else {}
    config = CALCULATING if row["turns"] == "several" else TINY
    return {"config": config, "environment": environment}


def train(row: Row, number: int, folder: Path, expected: Run) -> Outcome:
    """Train a row with its drafts and its fleet, and compare it."""
    began = time.monotonic()
    options = options_of(row)
    own = "own" if row["drafter"] not in WRONG else row["drafter"]
    environment = {**options["environment"], "RLBOOST_TEST_DRAFTER": own}  # type: ignore[dict-item]
    drafters = DRAFTERS.get(row["drafter"], ALL)
    flags = (
        *flags_of(row),
        *PATIENT,
        *("speculation.enabled=True", f"speculation.drafters={drafters}"),
        f"fleet.max_instances={1 if row['devices'] == 'own' else 0}",
    )
    with prepared(folder / "run", *flags, **{**options, "environment": environment}) as run:
        try:
            tenants = disturb(row, run.hold(version=FIRST, drafts=True).start(), number, folder)
            run.finish()
            fault = "" if run.digests() == expected.digests() else "DIFFERS"
            run.assert_accounts_hold()
            for tenant in tenants:
                tenant.end()
        except AssertionError as error:
            fault = str(error).strip().splitlines()[-1] or repr(error)
        rows = run.metrics()
        drafted = sum(each["tokens_drafted"] or 0 for each in rows)
        accepted = sum(each["drafts_accepted"] or 0 for each in rows)
        if not drafted and not fault:
            fault = "nothing was drafted"
        if not accepted and not fault and row["drafter"] not in WRONG:
            fault = "no draft was accepted"
        gone = run.events("lost") or run.events("drained")
        if row["fleet"] != "calm" and not fault and not gone:
            fault = "no server went"
    seconds = time.monotonic() - began
    return Outcome(fault=fault, drafted=drafted, accepted=accepted, seconds=seconds)


def disturb(row: Row, run: Run, number: int, folder: Path) -> list[Tenant]:
    """Have servers do a part of the run, and let it go on once all has happened to them."""
    shared = row["devices"] == "shared"
    many = 2 if row["fleet"] == "chaos" else 1
    paths = [share(run, folder, f"s{n}") for n in range(many)] if shared else []
    match row["fleet"]:
        case "calm":
            with run.at_a_standstill(version=FIRST, drafts=True):
                return ordering(paths, number, run)
        case "chaos":
            chance = random.Random(number)
            tenants: list[Tenant] = []
            for version, then in ((FIRST, SECOND), (SECOND, None)):
                standstill = run.at_a_standstill(
                    version=version, servers=not tenants, then=then, drafts=True
                )
                with standstill as still:
                    tenants = tenants or ordering(paths, number, run)
                    victim = chance.choice(sorted((still.at_work or run.servers()).values()))
                time.sleep(chance.uniform(0.0, 0.1))
                os.kill(victim, chance.choice((signal.SIGKILL, signal.SIGTERM)))
            return tenants
        case "migration":
            with run.at_a_standstill(version=FIRST, drafts=True) as still:
                for pid in still.at_work.values():
                    os.kill(pid, signal.SIGKILL)
                run.wait_until(lambda: run.lost_at_work(set(still.at_work)), "their losses")
                paths = [share(run, folder, "s1")] if shared else []
                return ordering(paths, number, run)
        case other:
            raise AssertionError(other)


def share(run: Run, folder: Path, name: str) -> Path:
    """Start a server on a device that somebody else uses as well, and wait for its work."""
    path = folder / f"{name}.sock"
    server = run.serve(f"--name={name}", f"--budget_socket={path}")

    def works() -> bool:
        assert server.lives, server.errors
        return any(event["instance"] == name for event in run.events("working"))

    run.wait_until(works, f"work for {name}")
    return path


def ordering(paths: Sequence[Path], seed: int, run: Run) -> list[Tenant]:
    """Let somebody else change what is left to each of these servers, from now on."""
    tenants = [Tenant(path, seed + n) for n, path in enumerate(paths)]
    run.wait_until(lambda: all(len(tenant.states) > 2 for tenant in tenants), "orders")
    return tenants


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.drafted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", default="", help="numbers of some runs; left out: all")
    parser.add_argument("--folder", type=Path, help="for all runs; a part that is there is kept")
    parser.add_argument("--list", action="store_true", help="say what the runs are, and end")
    chosen = parser.parse_args(arguments)
    rows = dict(enumerate(cover()))
    if chosen.list:
        for number, row in rows.items():
            print(f"{number:3}", *(f"{row[name]:{_width(name)}}" for name in FACTORS))
        return 0
    numbers = [int(number) for number in chosen.rows.split(",")] if chosen.rows else [*rows]
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="rlboost-drafted-"))
    folder.mkdir(exist_ok=True, mode=0o700)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "programs"))
    expected: dict[tuple[str, ...], Run] = {}
    faults, began = 0, time.monotonic()
    for number in numbers:
        row = rows[number]
        if (settings := flags_of(row)) not in expected:
            expected[settings] = _compared(row, folder / f"without-{number}")
        (folder / str(number)).mkdir(mode=0o700)
        found = train(row, number, folder / str(number), expected[settings])
        faults += bool(found.fault)
        print(
            f"{number:3} {' '.join(row.values())}: {found.fault or 'equal'}; "
            f"{found.accepted} of {found.drafted} drafts accepted, {found.seconds:.0f} s",
            flush=True,
        )
    print(
        f"{len(numbers) - faults} of {len(numbers)} runs equal, compared with {len(expected)} "
        f"without drafts, in {time.monotonic() - began:.0f} s: {folder}"
    )
    return 1 if faults else 0


def _compared(row: Row, workdir: Path) -> Run:
    """A run of the same settings alone, without drafts."""
    run = complete(workdir, *flags_of(row), "fleet.max_instances=0", **options_of(row))
    digests = run.digests()
    if len({params for _, _, params in digests}) < len(digests):
        raise SystemExit(f"{workdir}: updates change nothing")
    return run


def _width(factor: str) -> int:
    return max(map(len, FACTORS[factor]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
