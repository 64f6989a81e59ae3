"""A manager of another release costs a start, not a traceback."""

import msgspec
import pytest

from rlboost_jax.learner.fleet.link import OtherRelease, _decoded


@pytest.mark.parametrize("frame", [["BatchReport", 0, "x"], ["Unheard", 1], {"a": 1}])
def test_what_it_says_is_answered_with_a_line(frame: object) -> None:
    with pytest.raises(OtherRelease, match=r"another release .* the same command goes on") as said:
        _decoded(msgspec.msgpack.encode(frame))
    assert "\n" not in str(said.value)
