"""What tests of the gateway share; asynchronous ones are run in a loop of their own."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlboost_jax.gateway.served import EngineBackend
from rlboost_jax.gateway.served_policy import Wanted, opened
from tests.gateway.places import MAX_TOKENS, Place, make_checkpoint, running
from tests.patience import PATIENCE_SECONDS
from tests.shared import made_once


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    story = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(asyncio.wait_for(story, PATIENCE_SECONDS))
    return True


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "gateway_checkpoint", make_checkpoint) / "checkpoint"


@pytest.fixture(scope="session")
def served(checkpoint: Path) -> Iterator[EngineBackend]:
    wanted = Wanted(
        checkpoint=str(checkpoint), name="tiny", slots=16, max_tokens=MAX_TOKENS, seed=5
    )
    with opened(wanted) as backend:
        yield backend


@pytest.fixture
def gateway(served: EngineBackend) -> Iterator[Place]:
    with running(served) as place:
        yield place
