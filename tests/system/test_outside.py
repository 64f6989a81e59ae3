"""A run whose loss and provider are of another package: ours by another name, so bits are equal."""

import os
from pathlib import Path

import pytest

from rlboost_jax.platform import exits
from tests.system.harness import PATIENT, SHORT, STEADY, Run, prepared, running

pytestmark = pytest.mark.system

MODULE = """
from rlboost_jax.algorithms.surrogates import clipped
from rlboost_jax.providers.local import LocalProvider

def loss(ratio, advantages):
    return clipped(ratio, advantages, clip_low=0.2, clip_high=0.25)

def rented(fleet, rendezvous):
    return LocalProvider(rendezvous, price_per_hour=fleet.options["price"])
"""


def test_code_of_another_package_changes_no_bit_and_may_not_change_itself(
    short_and_calm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "renting.py").write_text(MODULE)
    package = tmp_path / "renting-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: renting\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[rlboost_jax.providers]\nrented = renting:rented\n")
    paths = filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    settings = (
        *(*SHORT, *PATIENT, *STEADY),
        "algorithm.surrogate=renting:loss",
        "fleet.provider=rented",
        "fleet.options={'price': 0.5}",
    )
    with running(tmp_path / "run", *settings) as run:
        run.finish()
    assert run.digests() == short_and_calm.digests()
    ordered = [e["instance"] for e in run.events("ordered")]  # on a busy host none has joined
    assert ordered and all(name.startswith("rented-") for name in ordered)
    (tmp_path / "renting.py").write_text(MODULE.replace("0.25", "0.3"))
    with prepared(run.workdir, *settings, "num_steps=7") as again:
        again.start()
        assert "algorithm.surrogate 'renting:loss': " in again.end()
        assert again.process is not None and again.process.returncode == exits.MISTAKE
