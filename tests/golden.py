"""Compare the bits of this checkout with those of another commit, on this machine.

    python -m tests.golden --before=COMMIT [VARIANT …] [--conditions=chaos,resumed]

Each variant of a run is trained calmly at COMMIT, and then here under each condition. Digests of
trajectories and parameters have to be the same, update by update. Bits depend on the processor,
so a stored list would not do.

calm       all servers live
chaos      servers are killed, end and join all the time
drafts     the same, while they draft tokens
alone      there is no server
resumed    the trainer is killed in the middle, and started again
inherited  the trainer of COMMIT is killed in the middle, and this one goes on in its folder; it
           may also refuse with one line, which is shown

Exit status: 0 where all is equal, 1 where not.
"""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, assert_never, get_args

from tests.processes import marked

ROOT = Path(__file__).resolve().parent.parent
MARK = "RLBOOST_TEST_GOLDEN"
LOOK_SECONDS = 0.02
Condition = Literal["calm", "chaos", "drafts", "alone", "resumed", "inherited"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
Digests = list[tuple[int, str, str]]  # step, of trajectories, of parameters

SHORT = (
    "seed=11",
    "num_steps=4",
    "warmup.max_updates=6",
    "warmup.habit_updates=2",
    "learner.prompts_per_step=16",
    "learner.micro_batch_prompts=4",
    "algorithm.advantage=return",  # compares nothing: a penalty teaches, though no answer is right
    "algorithm.overlong_penalty=1.0",
    "algorithm.overlong_band=0.9",
    "manager.progress_seconds=600",
)
# A few answers are right, by guessing: what compares has something to compare.
_RIGHT = ("warmup.habit_updates=12",)
_DAPO = ("algorithm.name=dapo", "algorithm.advantage=group_std", "evaluation.every_steps=2")
_BFLOAT16 = ("model.dtype", "engine.kv_dtype", "weights.rollout_dtype")
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "tiny": (),
    "dapo": (*_DAPO, *_RIGHT),
    "ppo": ("algorithm.name=ppo", "algorithm.advantage=gae", "algorithm.group_size=8", *_RIGHT),
    "mini_batches": ("algorithm.mini_batches=2",),
    "lag_1": ("algorithm.lag=1",),
    "lag_2": ("algorithm.lag=2", "algorithm.mini_batches=2"),
    "lag_dapo": (*_DAPO, *_RIGHT, "algorithm.lag=1"),
    "kl": ("algorithm.kl_coefficient=0.1",),
    "lora": ("model.lora.rank=4",),
    "moe": ("model.num_experts=6", "model.experts_per_token=2", "model.expert_dim=32"),
    "bf16": tuple(f"{name}=bfloat16" for name in _BFLOAT16),
    "hf_tiny": (),
    "turns": ("engine.max_prompt_tokens=16", "warmup.max_updates=0", "warmup.habit_updates=0"),
}
# With an environment that has a tool: `turns`.
_CONFIGS: Mapping[str, str] = {
    "hf_tiny": "configs/hf_tiny.py",
    "turns": "tests/system/calculating.py",
}


@dataclasses.dataclass(frozen=True)
class Tree:
    """Sources of one commit, with the compiled kernels that belong to them.

    Attributes:
        compiled: folder for compiled programs.
    """

    folder: Path
    compiled: Path

    def start(
        self, variant: str, workdir: Path, *overrides: str, **more: str
    ) -> subprocess.Popen[bytes]:
        """Args: more: of the environment."""
        flags = [*_start(variant, workdir), *VARIANTS[variant], *overrides]
        command = [
            *(sys.executable, "-m", "rlboost_jax.main"),
            *(f"--config={_CONFIGS.get(variant, 'configs/tiny.py')}", f"--workdir={workdir}"),
            f"--config.compile_cache_dir={self.compiled}",
            *(f"--config.{flag}" for flag in flags),
        ]
        path = os.pathsep.join([str(self.folder), str(self.folder / "kernels")])
        environment = {**os.environ, "PYTHONPATH": path, MARK: str(workdir), **more}
        with open(f"{workdir}.log", "ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    def run(self, variant: str, workdir: Path, *overrides: str, **more: str) -> int:
        return self.start(variant, workdir, *overrides, **more).wait()

    def run_half(self, variant: str, workdir: Path, *overrides: str) -> None:
        """Kill the trainer after its second update."""
        with self.start(variant, workdir, *overrides) as process:
            while len(digests(workdir)) < 2 and process.poll() is None:
                time.sleep(LOOK_SECONDS)
            process.send_signal(signal.SIGKILL)


def _start(variant: str, workdir: Path) -> tuple[str, ...]:
    """Settings of every run of a variant."""
    if variant != "hf_tiny":
        return SHORT
    start = workdir.parent.parent / "hf_tiny_start"
    return (
        f"model.source={start / 'checkpoint'}",
        f"data.source={start / 'train.jsonl'}",
        f"data.heldout_source={start / 'test.jsonl'}",
        *("num_steps=4", "learner.prompts_per_step=8", "learner.micro_batch_prompts=4"),
        *("learner.learning_rate=1e-4", "rewards.workers=1", "fleet.chaos.enabled=False"),
    )


def tree_of(commit: str, folder: Path) -> Tree:
    """Sources of a commit, kernels compiled."""
    folder.mkdir()
    archive = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    if archive.wait() != 0:
        raise SystemExit(f"no commit {commit!r} here")
    compile_kernels(folder)
    return Tree(folder, folder / "compiled")


def compile_kernels(folder: Path) -> None:
    """Compile the kernels of both sides, whose bits differ without them."""
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder / "kernels", check=True)


def digests(workdir: Path) -> Digests:
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [
        (row["step"], row["trajectories_digest"], row["params_digest"])
        for row in found
        if not row.get("final")
    ]


def end_all(workdir: Path) -> None:
    while found := marked(f"{MARK}={workdir}"):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(LOOK_SECONDS)


def outcome(
    condition: Condition, variant: str, before: Tree, here: Tree, expected: Digests, workdir: Path
) -> str:
    """What a variant comes to under a condition: "equal", "refused" and why, or what differs."""
    overrides: tuple[str, ...] = ()
    chaos = ("fleet.chaos.enabled=True", "fleet.chaos.kills_per_minute=60.0")
    match condition:
        case "calm":
            pass
        case "chaos":
            overrides = chaos
        case "drafts":
            overrides = (*chaos, "speculation.enabled=True")
        case "alone":
            overrides = ("fleet.max_instances=0",)
        case "resumed":
            here.run_half(variant, workdir)
        case "inherited":
            before.run_half(variant, workdir)
        case _:
            assert_never(condition)
    code = here.run(variant, workdir, *overrides)
    end_all(workdir)
    found = digests(workdir)
    if code == 2 and condition == "inherited":
        return "refused: " + Path(f"{workdir}.log").read_text().splitlines()[-1]
    if code != 0:
        return f"ended with {code}, see {workdir}.log"
    if found != expected:
        steps = [a[0] for a, b in zip(found, expected, strict=False) if a != b]
        return f"DIFFERS from step {steps[0] if steps else min(len(found), len(expected))}"
    return "equal"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "variants",
        nargs="*",
        metavar="VARIANT",
        help=", ".join(VARIANTS) + "; left out: all that have no lag",
    )
    parser.add_argument("--before", required=True, help="commit to compare with")
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    chosen = parser.parse_args(arguments)
    variants = chosen.variants or [name for name in VARIANTS if not name.startswith("lag")]
    conditions = [c for c in CONDITIONS if c in chosen.conditions.split(",")]
    if unknown := {*variants} - {*VARIANTS} or {*chosen.conditions.split(",")} - {*CONDITIONS}:
        parser.error(f"no {min(unknown)!r}; there are {', '.join((*VARIANTS, *CONDITIONS))}")

    folder = Path(tempfile.mkdtemp(prefix="rlboost-golden-"))
    compile_kernels(ROOT)
    before, here = tree_of(chosen.before, folder / "tree"), Tree(ROOT, folder / "compiled")
    if "hf_tiny" in variants:
        tool = [sys.executable, "tools/make_hf_tiny.py", "--updates=200"]
        subprocess.run([*tool, f"--to={folder / 'hf_tiny_start'}"], cwd=ROOT, check=True)
    different = False
    for variant in variants:
        (folder / variant).mkdir()
        code = before.run(variant, folder / variant / "before")
        expected = digests(folder / variant / "before")
        if code != 0 or len({row[2] for row in expected}) < 2:
            raise SystemExit(f"{variant} at {chosen.before} ended with {code}: see {folder}")
        for condition in conditions:
            workdir = folder / variant / condition
            found = outcome(condition, variant, before, here, expected, workdir)
            different |= not found.startswith(("equal", "refused"))
            print(f"{variant:12} {condition:10} {found}", flush=True)
    print(f"folders of all runs: {folder}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
