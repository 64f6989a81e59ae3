"""A fleet of real server processes with stand-in engines: what opens the manager is shown nowhere.

`python -m benchmarks.fleet_start` has the seconds; here nothing is timed.
"""

from pathlib import Path

import pytest

from benchmarks.fleet_start.__main__ import started
from rlboost_jax.trust.credentials import packed
from tests.processes import living

pytestmark = pytest.mark.system

KEPT = ("join", "trainer", "authority", "page")  # folders of a run that hold secrets


def secrets_of(workdir: Path) -> list[str]:
    """Secrets of servers and of the trainer, in parts and in one word.

    They are tokens and a part of each private key.
    """
    found = [(workdir / folder / "token").read_text().strip() for folder in ("join", "trainer")]
    for folder in ("join", "trainer"):
        lines = (workdir / folder / "client.key").read_text().splitlines()
        found.append("".join(lines[1:-1])[:40])
        found.append(lines[1])
    found.append((workdir / "trainer" / "seal.key").read_text().strip())
    return [*found, packed(workdir / "join")[:60]]


@pytest.mark.parametrize(
    ("provider", "instances"),
    [
        ("command", 3),
        pytest.param("local", 20, marks=pytest.mark.soak),
        pytest.param("command", 20, marks=pytest.mark.soak),
    ],
)
def test_a_whole_fleet_gives_tokens_and_no_secret_shows(
    tmp_path: Path, provider: str, instances: int
) -> None:
    with started(provider, instances, tmp_path) as start:
        assert start.instances == instances and start.spent["token"][0] > 0
        shown = {f"process {each.pid}": each.command for each in living()}
        assert any("rlboost_jax" in command for command in shown.values())
        workdir = tmp_path / "run"
        for path in tmp_path.rglob("*"):
            inside = path.relative_to(tmp_path).parts
            if path.is_file() and not (inside[0] == "run" and inside[1] in KEPT):
                shown[str(path)] = path.read_bytes().decode(errors="replace")
        wanted = ("events.jsonl", "config.json", "logs/manager.log", "logs/said")
        assert all(any(f"run/{name}" in place for place in shown) for name in wanted)
        secrets = secrets_of(workdir)
        assert all(len(secret) > 20 for secret in secrets)
        assert not [place for place, text in shown.items() if any(s in text for s in secrets)]
