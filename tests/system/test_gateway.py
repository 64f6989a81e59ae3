"""A command-line agent trains a policy through the gateway, while all that answers it is killed.

The chat template is not prefix-stable, and the agent rewrites some conversations: those that
cannot go on do so in another sequence.
"""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from rlboost_jax.observe.samples import read_samples
from tests import unoptimized
from tests.gateway.config import get_config
from tests.gateway.places import FORGETFUL, make_checkpoint
from tests.shared import made_once
from tests.system.harness import MARK, PATIENT, REPOSITORY, Run, complete, prepared

pytestmark = pytest.mark.system

CONFIG = REPOSITORY / "tests" / "gateway" / "config.py"
SAID = re.compile(r"(?s)<\|im_start\|>assistant\n(.*?)<\|im_end\|>")
WORKER = "rlboost_jax.environments.environment_worker"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    start = made_once(tmp_path_factory, "gateway_checkpoint", make_checkpoint)
    compiled = unoptimized.environment(os.environ.get("XLA_FLAGS", ""))
    own = {"GATEWAY_TEST_START": str(start), "GATEWAY_TEST_TEMPLATE": FORGETFUL}
    return {**compiled, **own}


@pytest.fixture(scope="module")
def calm(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run without servers, and without kills."""
    workdir = tmp_path_factory.mktemp("calm") / "run"
    return complete(workdir, config=CONFIG, environment=environment)


def test_an_agent_that_knows_an_address_trains_a_policy(calm: Run) -> None:
    rows = calm.metrics()
    assert all(row["max_logprob_gap"] <= 1e-5 for row in rows)
    assert all(row["episodes_left_out"] == 0 for row in rows)
    assert any(row["reward_std"] > 0 for row in rows), "its reward is asked for"
    assert not list(_agents(calm))


def test_what_cannot_go_on_begins_another_sequence_and_nothing_else_is_encoded_again(
    calm: Run, environment: dict[str, str]
) -> None:
    """Counted by transformers, in the prompts of later sequences."""
    folder = Path(environment["GATEWAY_TEST_START"]) / "checkpoint"
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)
    begun = set()
    for row in calm.metrics():
        samples = [each for each in read_samples(calm.workdir) if each["step"] == row["step"]]
        assert len(samples) == 16
        encoded = 0
        for sample in samples:
            sequence = said = 0
            for part in sample["turns"]:
                if part["sequence"] > sequence:
                    again = re.findall(SAID, part["text"])
                    encoded += sum(len(tokenizer.encode(text)) for text in again)
                    begun.add("cut by the template" if again else "summed up by the agent")
                    assert len(again) in (0, said)
                    said = len(again)
                elif not part["sampled"]:
                    begun.add("continued")
                said, sequence = said + part["sampled"], part["sequence"]
        assert row["tokens_retokenised"] == encoded
        assert 1 < row["sequences_mean"] < row["turns_mean"]
    assert begun == {"continued", "cut by the template", "summed up by the agent"}


def test_engines_end_turns_by_themselves(calm: Run) -> None:
    """Where nobody dies nothing is lost: no engine goes on past `environment.turn_tokens`."""
    for row in calm.metrics():
        assert row["tokens_lost"] == 0 and row["tokens_generated"] == row["response_tokens"], row
        assert row["turns_mean"] > 1 and 0 < row["parked_share"] < 1


def test_kills_change_no_bit(calm: Run, environment: dict[str, str], tmp_path: Path) -> None:
    """Servers at work, harnesses and the processes that they talk to are killed."""
    hold, script = tmp_path / "hold", tmp_path / "held.sh"
    hold.touch()  # no harness begins
    script.write_text(f'while [ -e "{hold}" ]; do sleep 0.05; done; exec "$@"\n')
    with mock.patch.dict(os.environ, {**environment, MARK: str(tmp_path / "run")}):
        options = get_config().environment.options.to_dict()
    options["command"] = ["sh", str(script), *options["command"]]
    overrides = (
        *(*PATIENT, "fleet.max_instances=2", "environment.attempts=100"),
        *(f"environment.options={options!r}", "environment.time_limit_seconds=3600"),
    )
    # Proxies that lead nowhere: none of what is dialled is behind one.
    proxies = dict.fromkeys(("https_proxy", "HTTPS_PROXY", "all_proxy"), "http://127.0.0.1:9")
    own = {**environment, **proxies, "no_proxy": "example.com"}
    with prepared(tmp_path / "run", *overrides, config=CONFIG, environment=own) as attacked:
        attacked.hold(dispatches=1, version=0).start()
        for _ in range(2):
            harness = attacked.wait_until(lambda: next(_agents(attacked), None), "a harness")
            _kill(harness)
            for pid, command in attacked.processes().items():
                if WORKER in command:
                    _kill(pid)
        hold.unlink()
        attacked.wait_until(lambda: attacked.events("ready"), "a server")
        attacked.let_go()
        attacked.finish()
        attacked.assert_nothing_is_left()  # harnesses end with their workers
    assert attacked.digests() == calm.digests()


def _agents(run: Run) -> Iterator[int]:
    """Harnesses of that run."""
    for pid, command in run.processes().items():
        if "agent.py" in command and "rlboost_jax.main" not in command:
            yield pid


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
