"""A planted mistake is there for a while, has to be one, and has to be come to."""

from collections.abc import Iterator

import pytest

from tests.planted import Plant, planted


class Sum:
    start = 0

    def of(self, *numbers: int) -> int:
        return sum(numbers, self.start)

    @property
    def half(self) -> float:
        return self.start / 2


def test_it_is_there_meanwhile_and_what_was_right_is_back() -> None:
    right, half = vars(Sum)["of"], vars(Sum)["half"]
    with (
        planted(Sum, "of", lambda self, *numbers: right(self, *numbers) + 1),
        planted(Sum, "half", property(lambda self: self.start / 3)),
        planted(Sum, "start", 6),
    ):
        assert Sum().of(1, 2) == 10 and Sum().half == 2
    assert vars(Sum)["of"] is right and vars(Sum)["half"] is half and Sum.start == 0


@pytest.mark.parametrize("defect", [lambda self: 0, property(lambda self: 0)])
def test_one_that_nothing_comes_to_shows_nothing(defect: object) -> None:
    with (
        pytest.raises(AssertionError, match="nothing came to the mistake planted as of of"),
        planted(Sum, "of", defect),
    ):
        pass
    assert Sum().of(1) == 1


def test_what_is_right_and_what_is_not_there_cannot_be_planted(plant: Plant) -> None:
    with pytest.raises(ValueError, match="is that already"):
        plant(Sum, "of", Sum.of)
    with pytest.raises(AttributeError, match="product"):
        plant(Sum, "product", lambda self: 0)
    assert not hasattr(Sum, "product")


@pytest.fixture
def right_again() -> Iterator[None]:
    """Looks once what is set up after it has gone."""
    yield
    assert Sum().of() == 0


def test_the_fixture_s_is_there_until_the_end_of_the_test(right_again: None, plant: Plant) -> None:
    plant(Sum, "of", lambda self: 7)
    assert Sum().of() == 7


def test_a_failure_meanwhile_is_not_hidden() -> None:
    with pytest.raises(KeyError), planted(Sum, "of", lambda self: 0):
        raise KeyError
