import pytest

from tests import small


@pytest.fixture
def small_model():
    """A factory of small model configurations: `small_model(num_layers=5)`."""
    return small.small_model
