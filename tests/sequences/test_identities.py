"""Names of works: each its own, and the noise of a first sequence what it always was."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.sequences.identities import MOST_TRAINED, Batch, Work, sample_number

PROMPTS = st.integers(0, MOST_TRAINED - 1)
GROUPS = st.integers(1, 500)


def work(**fields) -> Work:
    return Work(**{"seed": 7, "batch": Batch(2), "prompt": 0, "sample": 0, **fields})


@given(GROUPS, st.data())
def test_samples_are_numbered_group_by_group(size: int, data: st.DataObject) -> None:
    """Evaluation samples come behind all that could be trained on."""
    kinds = st.tuples(st.sampled_from(["train", "evaluate"]), PROMPTS, st.integers(0, size - 1))
    first, second = data.draw(kinds), data.draw(kinds)

    def number(kind: tuple) -> int:
        return sample_number(kind[1], kind[2], group_size=size, purpose=kind[0])

    order = {"train": 0, "evaluate": 1}
    earlier = (order[first[0]], *first[1:]) < (order[second[0]], *second[1:])
    assert (number(first) < number(second)) == earlier
    if first[0] == "train":
        assert divmod(number(first), size) == first[1:]
    else:
        assert divmod(number(first) - MOST_TRAINED * size, size) == first[1:]


def test_the_first_sequence_has_the_noise_of_its_run() -> None:
    assert work().noise_seed == 7


@given(st.integers(0, 2**32 - 1), st.integers(1, 1000))
def test_later_sequences_have_noise_of_their_own(seed: int, sequence: int) -> None:
    found = work(seed=seed, sequence=sequence).noise_seed
    assert 0 <= found < 2**32
    assert found == work(seed=seed, sequence=sequence, prompt=5, sample=9).noise_seed


def test_noise_of_later_sequences_is_the_same_everywhere() -> None:
    """First 4 bytes of `printf '7 1' | sha256sum`, the lowest first."""
    assert work(sequence=1).noise_seed == 0x460C316A
    assert len({work(sequence=n).noise_seed for n in range(1000)}) == 1000


@pytest.mark.parametrize("field", ["seed", "prompt", "sample", "sequence"])
@pytest.mark.parametrize("value", [-1, 2**32])
def test_numbers_are_unsigned_and_of_32_bits(field: str, value: int) -> None:
    sent = msgspec.msgpack.encode(work(**{field: value}))
    with pytest.raises(msgspec.ValidationError, match="int"):
        msgspec.msgpack.decode(sent, type=Work)


def test_what_it_is_for_is_one_of_two() -> None:
    sent = msgspec.msgpack.encode(work(purpose="measure"))
    with pytest.raises(msgspec.ValidationError, match="measure"):
        msgspec.msgpack.decode(sent, type=Work)
