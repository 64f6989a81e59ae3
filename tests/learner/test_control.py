"""Channels between processes of a trainer, and who sends which part of an array."""

import socket
import threading
from dataclasses import replace
from types import MappingProxyType

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rlboost_jax.learner import orders
from rlboost_jax.learner.control import Channel, PeerGone
from rlboost_jax.learner.followers import FollowerLost
from rlboost_jax.learner.guards import NotFinite
from rlboost_jax.learner.watch import Watch
from rlboost_jax.models.sharding import make_mesh
from rlboost_jax.settings.errors import ConfigError
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    both = Channel(here), Channel(there)
    yield both
    for channel in both:
        channel.close()


def test_messages_and_arrays_arrive_as_they_were_sent(pair, groups):
    here, there = pair
    trajectory = replace(
        groups[0].trajectories[0],
        reward=float("nan"),
        advantage=np.float64(0.5),
        advantages=np.arange(3, dtype=np.float32),
        trained=False,
        routes=np.arange(12, dtype=np.uint8).reshape(3, 2, 2),
        reward_components=MappingProxyType({"exact": 1.0}),
    )
    sent = (replace(groups[0], trajectories=(trajectory,)), *groups[1:])
    here.send([orders.TRAIN, 4, orders.groups_to_wire(sent)])
    name, index, told = there.receive()
    assert (name, index) == (orders.TRAIN, 4)
    received = orders.groups_from_wire(told)
    assert [group.prompt for group in received] == [group.prompt for group in sent]
    for ours, theirs in zip(sent, received, strict=True):
        for a, b in zip(ours.trajectories, theirs.trajectories, strict=True):
            assert vars(a).keys() == vars(b).keys()
            for field, value in vars(a).items():
                np.testing.assert_array_equal(value, vars(b)[field], err_msg=field)
                if isinstance(value, np.ndarray):
                    assert value.dtype == vars(b)[field].dtype


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4)])
def test_an_array_needs_no_frame(pair, shape):
    here, there = pair
    array = np.asfortranarray(np.random.default_rng(0).normal(size=shape))
    sending = threading.Thread(target=lambda: (here.send_array(array), here.send("next")))
    sending.start()
    np.testing.assert_array_equal(there.receive_array(array.shape, array.dtype), array)
    assert there.receive() == "next"
    sending.join()


def test_what_is_not_ours_is_refused(pair):
    here, there = pair
    with pytest.raises(NotImplementedError, match="object is not sent"):
        here.send([object()])
    here._send(b"GET / HTTP/1.1\r\n")
    with pytest.raises(PeerGone, match="is none of ours"):
        there.receive()


def test_the_end_of_the_other_side_is_an_error(pair):
    here, there = pair
    here._send(b"\0\0")  # in the middle of a frame
    here.close()
    with pytest.raises(PeerGone, match="closed"):
        there.receive()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, None, None),
        (NotFinite("step 3: not finite\nmore"), 2, "process 1 ended: step 3: not finite; the"),
        (RuntimeError("deep inside"), 1, "process 1 ended: RuntimeError: deep inside; the"),
        (KeyboardInterrupt(15), 1, "process 1 ended: KeyboardInterrupt: 15; the"),
        ("without a word", 1, "process 1 is gone without a word; the"),
    ],
)
def test_a_watch_tells_how_the_other_one_ended(pair, error, code, said, monkeypatch):
    monkeypatch.setattr("rlboost_jax.learner.watch._ended_within", lambda seconds: True)
    here, there = pair
    heard = threading.Event()
    watch = Watch(here, lambda reason, code: FollowerLost(f"process 1 {reason}; the same", code))
    watch.tell(lambda loss: heard.set())
    if error == "without a word":
        there.close()
    else:
        Watch(there, ConfigError).end(error)
    if code is None:
        assert watch.verdict() is None
        return
    assert heard.wait(PATIENCE_SECONDS)
    assert watch.loss.exit_code == code
    assert said in str(watch.loss)
    again = []
    watch.tell(again.append)
    assert again == [watch.loss], "who asks late is told at once"


def test_one_process_has_nothing_to_be_sent():
    sharding = NamedSharding(make_mesh((1, 1, 1)), PartitionSpec("fsdp"))
    assert list(orders.shards_to_send(sharding, (4, 2))) == []


class Spread(jax.sharding.Sharding):
    """A sharding of four rows over devices (process, row), as `jax.sharding.Sharding` tells it."""

    def __init__(self, *places):
        self.places = places

    def devices_indices_map(self, shape):
        class Device:
            def __init__(self, process):
                self.process_index = process

        return {Device(process): (slice(row, row + 1),) for process, row in self.places}


def test_each_part_that_process_0_lacks_comes_from_one_process():
    spread = Spread((0, 0), (1, 0), (2, 1), (1, 1), (1, 2), (2, 3))
    found = sorted((index[0].start, who) for index, who in orders.shards_to_send(spread, (4,)))
    assert found == [(1, 1), (2, 1), (3, 2)]
