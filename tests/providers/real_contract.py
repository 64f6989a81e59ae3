"""The contract's tests that are played over real schedulers, for `import *` beside a `bench`."""

import pytest

from tests.providers.benches import Bench
from tests.providers.test_contract import (
    test_a_grace_is_a_bound,
    test_a_nonce_is_good_for_one_machine,
    test_a_pool_that_there_is_not_is_refused,
    test_a_request_under_way_can_be_terminated,
    test_a_server_echoes_what_it_was_asked_for_with,
    test_a_server_may_end_by_itself,
    test_each_request_is_answered_and_ends_once,
    test_the_end_of_nobody_is_no_mistake,
    test_the_end_of_the_run_leaves_nothing,
    test_the_next_manager_finds_what_is_paid_for,
    test_what_its_owner_takes_back_is_over_and_does_not_come_again,
)

__all__ = [
    "granting",
    "test_a_grace_is_a_bound",
    "test_a_nonce_is_good_for_one_machine",
    "test_a_pool_that_there_is_not_is_refused",
    "test_a_request_under_way_can_be_terminated",
    "test_a_server_echoes_what_it_was_asked_for_with",
    "test_a_server_may_end_by_itself",
    "test_each_request_is_answered_and_ends_once",
    "test_the_end_of_nobody_is_no_mistake",
    "test_the_end_of_the_run_leaves_nothing",
    "test_the_next_manager_finds_what_is_paid_for",
    "test_what_its_owner_takes_back_is_over_and_does_not_come_again",
]


@pytest.fixture
def granting(bench: Bench) -> Bench:
    return bench
