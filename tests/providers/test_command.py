"""A user's own commands: what they are given, what they may not do, and what their words become."""

import asyncio
import base64
import os
import re
import stat
import sys
import textwrap
from pathlib import Path

import pytest

from rlboost_jax.providers import external_program
from rlboost_jax.providers.base import ANY_POOL, Refused
from rlboost_jax.providers.command import CommandLauncher
from rlboost_jax.providers.external_program import MAX_BYTES, run_program
from rlboost_jax.providers.launcher import Job, LaunchFailed
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.settings.launchers_config import CommandConfig, command_mistakes
from rlboost_jax.trust.credentials import CredentialsUnusable, packed, read_credentials
from tests.certificates import make_run
from tests.patience import PATIENCE_SECONDS
from tests.processes import living
from tests.providers.benches import SECRET, made_join, rendezvous
from tests.providers.test_contract import Ear, play

NAMED = Job(handle="a", run="run", name="a", nonce="n", state="running")


def launcher(folder: Path, **commands: str) -> CommandLauncher:
    made_join(folder)
    settings = CommandConfig(**{"start": "true", "stop": "true", "list": "true", **commands})
    return CommandLauncher(settings, rendezvous(folder), price_per_hour=2.5)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(stat.S_IRWXU)
    return str(path)


def test_no_shell_reads_a_placeholder(tmp_path: Path) -> None:
    """Whatever a name is, it stays within its word."""
    out = tmp_path / "out"
    program = script(tmp_path / "show", f'printf "%s\\n" "$#" "$@" >"{out}"')
    start = f"{program} --name={{name}} '{{run}} {{pool}}' {{{{literal}}}} $HOME ;"
    asyncio.run(launcher(tmp_path, start=start).start("a; touch x `id` $(id)", "n", "big pool"))
    assert out.read_text().splitlines() == [
        *("5", "--name=a; touch x `id` $(id)", "run big pool", "{literal}", "$HOME", ";"),
    ]


def test_a_server_gets_all_that_it_needs_by_the_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    start = script(
        tmp_path / "show", f'env >"{out}"; tr "\\0" " " </proc/$$/cmdline >>"{out}.argv"'
    )
    asyncio.run(launcher(tmp_path, start=f"{start} {{name}}").start("a", "n-1", ANY_POOL))
    found = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert found["RLBOOST_NONCE"] == "n-1" and found["RLBOOST_NAME"] == "a"
    assert found["RLBOOST_MANAGER"] == "127.0.0.1:9" and found["RLBOOST_RUN"] == "run"
    assert found["RLBOOST_POOL"] == "any" and found["RLBOOST_PRICE"] == "2.5"
    assert found["RLBOOST_JOIN_FOLDER"] == str(tmp_path / "join")
    assert found["RLBOOST_JOIN"] == packed(tmp_path / "join")
    argv = Path(f"{out}.argv").read_text()
    assert SECRET not in argv and found["RLBOOST_JOIN"] not in argv


def test_stop_and_list_are_given_no_credentials(tmp_path: Path) -> None:
    show = script(tmp_path / "show", f'env >>"{tmp_path}/out"; echo "$1" >>"{tmp_path}/out"')
    made = launcher(tmp_path, stop=f"{show} {{grace}}", list=show)
    asyncio.run(made.stop(NAMED, 0.4))
    asyncio.run(made.stop(NAMED, 0.0))
    asyncio.run(made.list())
    said = (tmp_path / "out").read_text().splitlines()
    assert not [line for line in said if line.startswith("RLBOOST_JOIN")]
    graces = [line for line in said if line in ("0", "1")]
    assert graces == ["1", "0"], "less than a second of grace is not none"


def test_credentials_travel_as_one_word(tmp_path: Path) -> None:
    join = make_run(tmp_path) / "join"
    expected = read_credentials(join, {})
    wrapped = "\r\n".join(textwrap.wrap(packed(join), 76))  # as `base64` and mail wrap it
    assert read_credentials(None, {"RLBOOST_JOIN": wrapped}).token == expected.token
    found = read_credentials(None, {"RLBOOST_JOIN": packed(join)})
    assert (found.token, found.seal) == (expected.token, expected.seal)
    assert expected.tls is not None and found.tls is not None
    assert found.tls.get_ca_certs() == expected.tls.get_ca_certs() != []


DEEP = base64.b64encode(b"[" * 99_999).decode()


@pytest.mark.parametrize(
    "word",
    ["", "e30=", "not base64!", "W10=", "bnVsbA==", DEEP],
    ids=lambda word: word[:12],
)
def test_a_word_that_was_cut_off_is_no_credentials(word: str) -> None:
    with pytest.raises(CredentialsUnusable, match=r"RLBOOST_JOIN .*cut off") as error:
        read_credentials(None, {"RLBOOST_JOIN": word})
    assert "\n" not in str(error.value)


def test_without_any_it_says_both_ways() -> None:
    with pytest.raises(CredentialsUnusable, match=r"--join=FOLDER, or have RLBOOST_JOIN"):
        read_credentials(None, {})


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("run a n", "running"),
        ("run a n running", "running"),
        ("r a n waiting in a queue", "waiting"),
    ],
)
def test_a_line_of_the_list(tmp_path: Path, line: str, state: str) -> None:
    (found,) = asyncio.run(launcher(tmp_path, list=f"echo {line}").list())
    assert (found.name, found.nonce, found.state) == ("a", "n", state)


@pytest.mark.parametrize("line", ["run a", "run a n gone", "Connection refused"])
def test_a_line_that_is_none_is_a_list_that_failed(tmp_path: Path, line: str) -> None:
    """Else what it is about would be taken to be over."""
    with pytest.raises(LaunchFailed, match="RUN NAME NONCE"):
        asyncio.run(launcher(tmp_path, list=f"echo {line}").list())


def test_a_start_that_hangs_is_refused_and_ended_with_its_children(tmp_path: Path) -> None:
    async def story() -> None:
        mark, child = f"{tmp_path}/hangs", f"sleep {10**6 + os.getpid()}"
        start = script(Path(mark), f"{child} & wait")
        settings = CommandConfig(start=start, stop="true", list="true", timeout_seconds=0.3)
        made_join(tmp_path)
        made = CommandLauncher(settings, rendezvous(tmp_path), price_per_hour=1.0)
        provider = PolledProvider(made, "run", poll_seconds=0.05, settle_seconds=0.0)
        ear = Ear(provider)
        await provider.request("a", "n", ANY_POOL)
        refused = await ear.of("a", Refused)
        assert isinstance(refused, Refused) and refused.reason.endswith("did not end in 0.3 s")
        while [each for each in living() if mark in each.command or child in each.command]:
            await asyncio.sleep(0.01)
        await provider.close()

    play(story)


def run(*words: str, **options: float) -> str:
    async def limited() -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            seconds = options.get("timeout_seconds", PATIENCE_SECONDS)
            return await run_program(words, timeout_seconds=seconds, environment=os.environ)

    return asyncio.run(limited())


def test_output_is_bounded() -> None:
    printed = "print('x' * {}, end='')"
    assert len(run(sys.executable, "-c", printed.format(MAX_BYTES - 1))) == MAX_BYTES - 1
    with pytest.raises(LaunchFailed, match=f"more than {MAX_BYTES:,} bytes"):
        run(sys.executable, "-c", printed.format(2 * MAX_BYTES))


def test_a_child_that_is_left_behind_is_not_waited_for() -> None:
    """It holds the output open: a server that was started without a redirection."""
    said = run("sh", "-c", "sleep 987653 & echo $!")
    os.kill(int(said), 9)


def test_what_this_process_had_no_time_to_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the list of a fleet without servers."""
    monkeypatch.setattr(external_program, "REST_SECONDS", 0.0)
    assert [run("echo", "all of it") for _ in range(20)] == ["all of it\n"] * 20


def test_what_cannot_be_run_is_a_reason() -> None:
    with pytest.raises(LaunchFailed, match="cannot run /nowhere/x: No such file") as error:
        run("/nowhere/x")
    assert error.value.sure


@pytest.mark.parametrize(
    ("changes", "mistake"),
    [
        ({"start": ""}, "fleet.command.start is ''"),
        ({"stop": "kill {pid}"}, r"\{pid\} is no placeholder"),
        ({"list": "ls '"}, "No closing quotation"),
        ({"stop": "x {name!r}"}, "is no placeholder"),
        ({"stop": "x {"}, "fleet.command.stop is 'x {'"),
    ],
)
def test_a_template_that_makes_no_sense_is_a_mistake(changes: dict[str, str], mistake: str) -> None:
    commands = {"start": "a {name}", "stop": "b {name} {{x}}", "list": "c", **changes}
    (line,) = command_mistakes(CommandConfig(**commands))
    assert re.search(mistake, line)


def test_templates_that_make_sense_are_none() -> None:
    good = CommandConfig(
        start="a {name} {nonce} {run} {pool} {manager}", stop="b {grace}", list="c"
    )
    assert not list(command_mistakes(good))
