"""What a server says when it cannot serve, and what it imports."""

import asyncio
import subprocess
import sys

import pytest
from aiohttp import web

from configs import tiny
from rlboost_jax.engine.engine import Engine
from rlboost_jax.qualification.trial_host import HERE, Host
from rlboost_jax.qualification.trial_records import KernelVerdict, Trial
from rlboost_jax.rollout import server
from rlboost_jax.rollout.file_server_offer import read_offer
from rlboost_jax.settings.config_loading import run_config, to_dict
from rlboost_jax.trust.authority import server_tls
from rlboost_jax.trust.credentials import FILES_CONNECTIONS, FILES_PORT, Endpoint, read_credentials
from tests.certificates import make_run
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def join(tmp_path):
    return make_run(tmp_path) / "join"


def run(fakes, join, capsys, config, *options, address=None, host=HERE) -> str:
    """The only line of standard error of a server that gave up."""

    async def scenario():
        authority = join.parent / "authority"
        tls = server_tls(authority) if authority.exists() else None
        async with fakes.manager(tls=tls) as manager:
            manager.config = config
            arguments = [f"--manager={address or manager.address}", f"--join={join}"]
            return await asyncio.to_thread(server.main, [*arguments, *options], host=host)

    assert asyncio.run(scenario()) == server.CANNOT_SERVE
    *_, line = capsys.readouterr().err.splitlines()
    return line


def unknown_key():
    return web.json_response({"run_id": "r", "lerner": {}})


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot read"), ("", "holds no token"), ("\xff", "is not UTF-8")],
)
def test_a_token_file_of_no_use(fakes, tmp_path, capsys, content, reason):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content, encoding="latin-1")
    line = run(fakes, tmp_path, capsys, unknown_key)
    assert reason in line and str(path) in line and "<workdir>/join" in line


def test_a_wrong_token(fakes, join, capsys):
    (join / "token").write_text("guess")
    line = run(fakes, join, capsys, unknown_key)
    assert "wrong token" in line and "guess" not in line


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (unknown_key, "of another release (config.lerner does not exist; did you mean learner?"),
        (lambda: web.Response(text="<html>"), "/config is not JSON"),
        (lambda: web.json_response([1]), "/config is not a configuration"),
        (lambda: web.Response(status=404), "HTTP 404"),
    ],
)
def test_a_configuration_of_no_use(fakes, join, capsys, config, reason):
    assert reason in run(fakes, join, capsys, config)


def test_an_engine_that_does_not_fit(fakes, join, capsys):
    config = tiny.get_config()
    config.engine.memory_fraction = 1e-9
    values = {"run_id": "r", **to_dict(run_config(config))}
    line = run(fakes, join, capsys, lambda: web.json_response(values))
    assert "one rollout of full length needs" in line and "raise engine.memory_fraction" in line


def test_an_attention_that_this_device_cannot_run(fakes, join, capsys):
    """The choice of a deterministic run came with its configuration."""
    crashed = Trial(candidate="triton", outcome="crashed", reason="SIGSEGV")
    verdict = KernelVerdict(platform="gpu", device="NVIDIA T4", trials=(crashed,))
    host = Host(gpu_expected=lambda: True, facts=lambda: None, verdict_of=lambda spec: verdict)
    config = tiny.get_config()
    config.engine.attention = "triton"
    values = {"run_id": "r", **to_dict(run_config(config))}
    line = run(fakes, join, capsys, lambda: web.json_response(values), host=host)
    assert "engine.attention of this deterministic run is 'triton'" in line
    assert "on this NVIDIA T4 triton ended its process (SIGSEGV)" in line


class Unchecked(Engine):
    """Compiles nothing before it is needed."""

    def warm_up(self, announce=None):
        pass

    def assert_row_invariance(self):
        pass


def test_the_plan_of_memory_is_reported(capsys):
    engine = server.prepared_engine(run_config(tiny.get_config()), build=Unchecked)
    assert str(engine.memory) in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere.invalid:1"])
def test_no_manager_there(fakes, join, capsys, address):
    options = ["--patience_seconds=0"]
    line = run(fakes, join, capsys, unknown_key, *options, address=address)
    assert address in line and ("manager.json" in line or "HOST:PORT" in line)


@pytest.mark.parametrize("option", ["--manager", "--weights"])
@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.1:x", ":8476", "host:0", "host:65536", ""])
def test_an_address_without_host_or_port(capsys, option, text):
    given = {"--manager": "127.0.0.1:9", option: text}
    with pytest.raises(SystemExit) as left:
        server.main([f"{name}={value}" for name, value in given.items()])
    line = capsys.readouterr().err
    assert left.value.code == server.CANNOT_SERVE
    assert line.startswith(f"error: argument {option}: {text!r} is not HOST:PORT")
    assert line.count("\n") == 1


def test_a_manager_that_does_not_answer_yet_is_named_at_once(join, capsys):
    """Before the patience is over, which nobody should spend before a silent terminal."""
    manager = Endpoint(address="127.0.0.1:9", credentials=read_credentials(join))

    async def first_said() -> str:
        fetching = asyncio.create_task(server.fetch_settings(manager, PATIENCE_SECONDS))
        while not (said := capsys.readouterr().out):
            assert not fetching.done()
            await asyncio.sleep(0.01)
        fetching.cancel()
        return said

    (line,) = asyncio.run(first_said()).splitlines()
    assert "nothing listens at 127.0.0.1:9" in line
    assert line.endswith(f"; trying for {PATIENCE_SECONDS:g} s")


@pytest.mark.parametrize(
    ("port", "connections", "expected"),
    [
        *(("8477", "7", (8477, 7)), ("", "", (0, 32)), ("x", "-1", (0, 32))),
        *(("123456", "99", (0, 32)), ("1", "0", (1, 32))),
    ],
)
def test_what_a_manager_says_of_its_file_server(port, connections, expected):
    offer = read_offer({FILES_PORT: port, FILES_CONNECTIONS: connections})
    assert (offer.port, offer.connections) == expected


def test_imports_are_kept_small():
    """Nothing heavy beyond what Flax itself brings along."""
    program = (
        "import sys, flax.nnx; before = set(sys.modules);"
        "from rlboost_jax.rollout import server;"
        "print({n.split('.')[0] for n in set(sys.modules) - before}"
        " & {'orbax', 'grain', 'optax', 'tensorboardX', 'rich', 'torch'})"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "set()", ran.stderr


def test_the_command_ends_with_one_line_and_its_exit_code(tmp_path):
    missing = tmp_path / "join"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "rlboost_jax.rollout"),
            *("--manager=127.0.0.1:9", f"--join={missing}"),
        ],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == server.CANNOT_SERVE
    assert ran.stderr.count("\n") == 1 and str(missing) in ran.stderr
