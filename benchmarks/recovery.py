"""How long a manager that goes on from a journal is unheard, and how much memory it takes.

    python -m benchmarks.recovery --responses=8192 --tokens=14000

Writes the journal of a step whose responses have so many tokens each, starts a manager on it, and
prints the seconds until it answers anything, until it knows what the journal tells, the longest
that an answer took meanwhile, and the most memory that it had.
"""

import argparse
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from configs import tiny
from rlboost_jax.manager.journal_entries import BatchOpened, Collected, SegmentBegun
from rlboost_jax.messages import BeginBatch, PromptRequest, Sampling, pack_ids
from rlboost_jax.platform.proxies import opened
from rlboost_jax.platform.record_stream import encode_records
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.trust.credentials import Endpoint, read_credentials
from rlboost_jax.trust.run_files import read_record

GROUP, ROWS, PROMPT_TOKENS = 8, 64, 200  # rows: of one dispatch
ANSWER_SECONDS = 600.0


def write_run(workdir: Path, *, responses: int, tokens: int, per_dispatch: int) -> int:
    """A work directory with such a journal; returns its bytes."""
    config = tiny.get_config()
    config.fleet.provider = "none"
    config.fleet.orphan_seconds = ANSWER_SECONDS
    config.sampling.max_response_tokens = tokens + 1
    write_run_config(workdir / "config.json", run_config(config), "run")
    begin = BeginBatch(
        batch=0,
        version=0,
        params_digest="d",
        seed=0,
        group_size=GROUP,
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=tokens + 1, stop_ids=()),
        prompts=tuple(
            PromptRequest(prompt=i, tokens=bytes(4 * PROMPT_TOKENS))
            for i in range(responses // GROUP)
        ),
    )
    (workdir / "journal").mkdir()
    path = workdir / "journal" / "00000001-step-0.journal"
    ids = np.arange(per_dispatch * ROWS, dtype=np.int32).tobytes()
    logprobs = np.full(per_dispatch * ROWS, -0.5, np.float32).tobytes()
    with open(path, "wb") as file:
        file.write(encode_records([SegmentBegun(run_id="run"), BatchOpened(begin=begin, at=0.0)]))
        for first in range(0, responses, ROWS):
            for at in range(0, tokens - per_dispatch + 1, per_dispatch):
                entry = Collected(
                    batch=0,
                    instance="a",
                    samples=pack_ids(range(first, first + ROWS)),
                    starts=pack_ids([at] * ROWS),
                    counts=struct.pack(f"<{ROWS}H", *[per_dispatch] * ROWS),
                    tokens=ids,
                    logprobs=logprobs,
                    at=1.0,
                )
                file.write(encode_records([entry]))
    return path.stat().st_size


def measure(workdir: Path) -> dict[str, float]:
    """Seconds and GiB, see above."""
    began = time.monotonic()
    manager = subprocess.Popen(
        [sys.executable, "-m", "rlboost_jax.manager", f"--workdir={workdir}"],
        stderr=subprocess.DEVNULL,
    )
    try:
        first, longest = 0.0, 0.0
        while True:
            asked = time.monotonic()
            status = _asked(workdir)
            now = time.monotonic()
            if status:
                longest = max(longest, now - asked)
                first = first or now - began
            if status == 200:
                break
            if manager.poll() is not None or now - began > ANSWER_SECONDS:
                raise RuntimeError("no manager answers")
            time.sleep(0.02)
        lines = Path(f"/proc/{manager.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        return {
            "first_answer_seconds": first,
            "recovered_seconds": now - began,
            "longest_answer_seconds": longest,
            "peak_gib": peak / 2**20,
        }
    finally:
        manager.kill()
        manager.wait()


def _asked(workdir: Path) -> int:
    """HTTP's status of an answer; 0: there is none."""
    record = read_record(workdir)
    if record is None or not record.lives:
        return 0
    credentials = read_credentials(workdir / "trainer", environment={})
    there = Endpoint(address=record.local_address, credentials=credentials)
    request = urllib.request.Request(there.url("/status"), headers=there.headers)
    try:
        with opened(request, timeout=ANSWER_SECONDS, tls=credentials.tls) as a:
            return int(a.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=14_000)
    parser.add_argument("--per_dispatch", type=int, default=16)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlboost-recovery-") as folder:
        size = write_run(Path(folder), **vars(args))
        found = measure(Path(folder))
    print(f"journal {size / 1e9:.2f} GB, {args.responses:,} responses of {args.tokens:,} tokens")
    print("  ".join(f"{name} {value:.2f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
