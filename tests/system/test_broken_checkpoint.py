"""A supervised run whose newest checkpoint breaks while nobody looks: the bits stay the same."""

import os
import signal

import pytest

from rlboost_jax.cli.verify import main as verify
from rlboost_jax.learner.checkpoints.folders import broken_in, steps_in
from tests.system.harness import SHORT, running

pytestmark = [pytest.mark.system, pytest.mark.soak]


def test_a_supervised_run_goes_back_by_itself(short_and_calm, tmp_path, capsys):
    with running(tmp_path / "run", *SHORT, options=("--supervise",)) as run:
        folder = run.workdir / "checkpoints"
        run.wait_until(lambda: steps_in(folder)[-1:] >= [3], "third checkpoint")
        trainer = int((run.workdir / "lock").read_text())
        os.kill(trainer, signal.SIGSTOP)
        newest = steps_in(folder)[-1]
        path = max((folder / str(newest)).rglob("*"), key=lambda path: path.stat().st_size)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert verify([f"--workdir={run.workdir}"]) == 1
        assert path.name in capsys.readouterr().out
        os.kill(trainer, signal.SIGKILL)
        output = run.finish()
    assert f"checkpoint {newest} is broken: " in output and path.name in output
    assert f"the run goes on from checkpoint {newest - 1}" in output
    assert run.digests() == short_and_calm.digests()
    assert broken_in(folder) == [newest]
    assert verify([f"--workdir={run.workdir}"]) == 0
