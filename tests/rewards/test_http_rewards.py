"""A reward service, played by aiohttp, that answers as services do."""

import asyncio
import json
import threading

import pytest
from aiohttp import web

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.judge import Judge
from rlboost_jax.rewards.reward_frames import RewardJob, RewardResponse
from rlboost_jax.settings.rewards_config import RewardConfig, RewardsConfig
from tests.patience import PATIENCE_SECONDS

WAIT = PATIENCE_SECONDS
FOUR = RewardResponse(completion="four", completion_ids=(1, 2), finished=True)
JOB = RewardJob(prompt="p", responses=(FOUR,), columns={"a": 7})


class StandIn:
    """Serves `script`, an answer per request and the last one for ever, from its own thread."""

    def __init__(self):
        self.script, self.seen, self.headers = [], [], []
        self.under_way = self.most = 0
        self.release = None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(WAIT)

    async def _start(self):
        app = web.Application()
        app.router.add_post("/reward", self._answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/reward"

    async def _answer(self, request):
        self.headers.append(request.headers)
        self.seen.append(await request.json())
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            if callable(answer):
                return await answer(self)
            if isinstance(answer, int):
                return web.Response(status=answer, headers={"Location": self.url})
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            return web.Response(body=body, content_type="application/json")
        finally:
            self.under_way -= 1

    def close(self):
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(WAIT)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def never(stand_in):
    await asyncio.sleep(3600)


@pytest.fixture
def stand_in():
    made = StandIn()
    yield made
    made.close()


@pytest.fixture
def service(stand_in):
    made = []

    def build(time_limit_seconds=WAIT, **options):
        options = {"url": stand_in.url, "first_pause_seconds": 0.01, "retries": 2} | options
        config = RewardConfig(name="http", options=options, time_limit_seconds=time_limit_seconds)
        made.append(Judge([config], RewardsConfig(), columns=(), seed=0))
        return made[-1]._called["response"][0].queue

    def close():
        for each in made:
            each.close()

    build.close = close
    yield build
    close()


def asked(service, job=JOB):
    ((outcome,),) = service.ask(job).result(WAIT)
    return outcome


def test_it_gets_the_response_and_its_columns(service, stand_in, monkeypatch):
    monkeypatch.setenv("REWARD_TOKEN", "secret")
    stand_in.script = [{"rewards": [0.75]}]
    assert asked(service(token_env="REWARD_TOKEN")).value == 0.75
    assert stand_in.seen == [
        {
            "prompts": ["p"],
            "completions": ["four"],
            "columns": {"a": [7], "completion_ids": [[1, 2]], "finished": [True]},
        }
    ]
    assert stand_in.headers[0]["Authorization"] == "Bearer secret"


def test_a_token_read_from_a_file_ends_in_a_newline(service, stand_in, monkeypatch):
    monkeypatch.setenv("REWARD_TOKEN", " secret\r\n")
    stand_in.script = [{"rewards": [1.0]}]
    assert asked(service(token_env="REWARD_TOKEN")).value == 1.0
    assert stand_in.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("token", ["one\r\nHost: other", "two words", "é", "\n"])
def test_a_token_cannot_be_more_than_one(token, service, monkeypatch):
    monkeypatch.setenv("REWARD_TOKEN", token)
    with pytest.raises(ConfigError, match=r"REWARD_TOKEN \(token_env\)"):
        service(token_env="REWARD_TOKEN")


def test_a_group_is_one_request(service, stand_in):
    five = RewardResponse(completion="five", completion_ids=(3,), finished=False)
    group = RewardJob(prompt="p", responses=(FOUR, five), columns={"a": 7}, per="group")
    stand_in.script = [{"rewards": [0.5, None]}, {"rewards": [0.5]}, {"rewards": [1.0, "x"]}]
    asking = service()

    def found():
        (outcomes,) = asking.ask(group).result(WAIT)
        return [outcome.value for outcome in outcomes], {outcome.fault for outcome in outcomes}

    assert found() == ([0.5, None], {""})
    assert stand_in.seen == [
        {
            "prompts": ["p", "p"],
            "completions": ["four", "five"],
            "columns": {
                "a": [7, 7],
                "completion_ids": [[1, 2], [3]],
                "finished": [True, False],
            },
        }
    ]
    for _ in range(2):  # too few, and no number: for which response is not known
        values, (fault,) = found()
        assert values == [None, None] and fault.endswith('not {"rewards": [2 numbers]}')


def test_columns_that_are_no_json_cost_their_response(service, stand_in):
    stand_in.script = [{"rewards": [1.0]}]
    odd = RewardJob(prompt="", responses=(FOUR,), columns={"a": {(1,): 2}})
    asking = service()
    assert "a column cannot be sent" in asked(asking, odd).fault
    assert asked(asking).value == 1.0


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_may_pass_is_tried_again(status, service, stand_in):
    stand_in.script = [status, status, {"rewards": [1]}]
    assert asked(service()).value == 1.0
    assert len(stand_in.seen) == 3


def test_until_it_gives_up(service, stand_in):
    stand_in.script = [503]
    assert asked(service()).fault == "status 503; gave up after 3 attempts"
    assert len(stand_in.seen) == 3


@pytest.mark.parametrize("status", [302, 400, 401, 404])
def test_what_will_not_pass_is_not_and_a_redirect_takes_the_token_nowhere(
    status, service, stand_in
):
    stand_in.script = [status]
    assert asked(service()).fault == f"status {status}"
    assert len(stand_in.seen) == 1


def test_no_answer_in_time_is_tried_again(service, stand_in):
    stand_in.script = [never, {"rewards": [2.0]}]
    assert asked(service(time_limit_seconds=0.3, retries=12)).value == 2.0


def test_nobody_there(service):
    outcome = asked(service(url="http://127.0.0.1:1/", retries=1))
    assert "Cannot connect" in outcome.fault and "gave up after 2 attempts" in outcome.fault


@pytest.mark.parametrize(
    "answer",
    [
        b"no json",
        {"reward": [1.0]},
        {"rewards": []},
        {"rewards": [1.0, 2.0]},
        {"rewards": 1.0},
        {"rewards": ["1.0"]},
        {"rewards": [True]},
        [1.0],
        b'{"rewards": [1' + b"0" * 400 + b"]}",
        b"[" * 100_000,
    ],
)
def test_an_answer_of_another_form_is_a_fault(answer, service, stand_in):
    stand_in.script = [answer]
    outcome = asked(service())
    assert outcome.value is None and "not {" in outcome.fault


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_so_is_what_is_no_number(number, service, stand_in):
    stand_in.script = [f'{{"rewards": [{number}]}}'.encode()]
    assert asked(service()).fault.startswith("answered ")


def test_null_says_nothing(service, stand_in):
    stand_in.script = [{"rewards": [None]}]
    assert asked(service()) == type(asked(service()))()


def test_sizes_are_bounded_on_both_sides(service, stand_in):
    stand_in.script = [{"rewards": [1.0], "more": "x" * 2000}]
    assert asked(service(max_bytes=1000)).fault == "an answer of more than 1000 bytes (max_bytes)"
    long = RewardJob(prompt="p" * 1000, responses=(FOUR,), columns={})
    assert "max_bytes 1000" in asked(service(max_bytes=1000), long).fault
    assert len(stand_in.seen) == 1


def test_only_so_many_are_under_way(service, stand_in):
    async def slowly(stand_in):
        for _ in range(20):
            await asyncio.sleep(0)
        return web.json_response({"rewards": [1.0]})

    stand_in.script = [slowly]
    asking = service(max_concurrent=3)
    futures = [asking.ask(JOB) for _ in range(20)]
    assert [future.result(WAIT)[0][0].value for future in futures] == [1.0] * 20
    assert stand_in.most <= 3


def test_closing_does_not_wait(service, stand_in):
    stand_in.script = [never]
    asking = service()
    future = asking.ask(JOB)
    service.close()
    assert future.done()
    assert asking.ask(JOB).cancelled()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "service.example"}, "url is 'service.example'"),
        ({"url": "http://[::1"}, "give it as https://host/path"),
        ({"url": "http://host:port/"}, "give it as https://host/path"),
        ({"url": "http://host/a b"}, "give it as https://host/path"),
        ({"url": "http://host/\r\nX: y"}, "give it as https://host/path"),
        ({"url": "https://me:secret@host/"}, "name or password in it.* token_env"),
        ({"first_pause_seconds": "soon"}, "first_pause_seconds is 'soon'"),
        ({"retries": -1}, "retries is -1"),
        ({"retry": 1}, "takes no option 'retry'"),
        ({"token_env": "NO_SUCH_VARIABLE"}, "no NO_SUCH_VARIABLE"),
        ({"token_env": "HOME", "url": "http://service.example/"}, "use https for service.example"),
    ],
)
def test_mistakes(options, message, service):
    with pytest.raises(ConfigError, match=message) as caught:
        service(**options)
    assert "secret" not in str(caught.value)
