"""Frames between processes of a trainer."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from rlboost_jax.learner.processes import follower_orders
from rlboost_jax.learner.processes.trainer_channel import PeerGone
from rlboost_jax.rewards.verdict import Verdict
from tests.learner.turns import groups_in_turns


def test_messages_and_arrays_arrive_as_they_were_sent(pair, groups):
    here, there = pair
    groups = groups_in_turns(groups)
    first = groups[0].trajectories[0]
    routes = np.arange(4 * (first.sequence.trained_length - 1), dtype=np.uint8)
    trajectory = replace(
        first,
        sequence=replace(first.sequence, routes=routes.reshape(-1, 2, 2)),
        verdict=Verdict(
            reward=float("nan"),
            turn_rewards=(0.5, 0.25),
            components=MappingProxyType({"exact": 1.0}),
        ),
        advantage=np.float64(0.5),
        advantages=np.arange(3, dtype=np.float32),
        trained=False,
    )
    sent = (replace(groups[0], trajectories=(trajectory,)), *groups[1:])
    here.send([follower_orders.TRAIN, 4, sent])
    name, index, payload = there.receive()
    assert (name, index) == (follower_orders.TRAIN, 4)
    received = follower_orders.groups_from_wire(payload)
    assert [group.prompt for group in received] == [group.prompt for group in sent]
    for ours, theirs in zip(sent, received, strict=True):
        for a, b in zip(ours.trajectories, theirs.trajectories, strict=True):
            apart = {"sequence": None, "verdict": None}
            assert_same(vars(a) | apart, vars(b) | apart)
            assert_same(vars(a.sequence), vars(b.sequence))
            assert_same(vars(a.verdict), vars(b.verdict))


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for field, value in ours.items():
        np.testing.assert_array_equal(value, theirs[field], err_msg=field)
        if isinstance(value, np.ndarray):
            assert value.dtype == theirs[field].dtype
        if isinstance(value, tuple):
            assert value == theirs[field], "tuples of tuples, not lists"


def test_what_is_not_ours_is_refused(pair):
    here, there = pair
    with pytest.raises(NotImplementedError, match="object is not sent"):
        here.send([object()])
    here._socket.sendall(b"GET / HTTP/1.1\r\n")
    with pytest.raises(PeerGone, match="is none of ours"):
        there.receive()


@pytest.mark.parametrize(
    "frame",
    [
        b"\x91" * 100_000,  # lists in lists
        b"\xdd\xff\xff\xff\xff",  # a list of 4 billion, and none follows
        b"\xc1",
        b"",
        b"\xa2\xff\xfe",  # text that is no text
        b"\xd4\x01x",  # an array of one byte
        b"\xd4\x07x",  # an extension of nobody's
        b"\xc7\x0a\x01\x93NUMPY\x01\x00\xff\xff",  # an array that ends in its header
    ],
)
def test_what_cannot_be_decoded_is_reported_by_one_exception(pair, frame):
    here, there = pair
    here._socket.sendall(len(frame).to_bytes(8, "big") + frame)
    with pytest.raises(PeerGone, match="none of ours"):
        there.receive()


def test_a_frame_may_be_bounded_in_length_and_in_time(pair):
    here, there = pair
    here.send("x" * 300)
    with pytest.raises(PeerGone, match="a frame of 303 bytes is none of ours"):
        there.receive(most_bytes=256)
    with pytest.raises(PeerGone, match="silent for too long"):
        here.receive(seconds=0.0)


def test_objects_are_never_unpickled(pair):
    here, _ = pair
    with pytest.raises(ValueError, match="allow_pickle"):
        here.send([np.array([{"a": 1}], object)])


def test_the_end_of_the_other_side_is_an_error(pair):
    here, there = pair
    here._socket.sendall(b"\0\0")  # in the middle of a frame
    here.close()
    with pytest.raises(PeerGone, match="closed"):
        there.receive()
