"""Nothing in a record of somebody else's goes unnoticed."""

import logging

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.foreign_keys import refuse_unknown, report_unknown, unknown_keys

KNOWN = ("factor", "beta_fast")


def test_a_key_without_a_value_is_no_leftover() -> None:
    assert unknown_keys({"factor": 1, "gamma": None, "delta": 0}, KNOWN) == ("delta",)


def test_a_refusal_names_place_key_value_and_the_nearest_known_key() -> None:
    with pytest.raises(ConfigError, match=r"config\.json: beta_fats is 32, .*did you mean beta_fa"):
        refuse_unknown({"factor": 4, "beta_fats": 32}, KNOWN, "config.json")


def test_a_refusal_is_of_the_kind_that_the_reader_wants_and_short() -> None:
    with pytest.raises(KeyError) as caught:
        refuse_unknown({"x": "y" * 10_000}, KNOWN, "row 3", error=KeyError)
    assert len(str(caught.value)) < 200


def test_a_report_is_one_warning_and_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    values = {"factor": 1, "gamma": 2, "delta": 3}
    with caplog.at_level(logging.WARNING):
        report_unknown(values, KNOWN, "test_foreign_keys.json")
        report_unknown(values, KNOWN, "test_foreign_keys.json")
        report_unknown({"factor": 1}, KNOWN, "test_foreign_keys.json")
    assert [r.getMessage() for r in caplog.records] == [
        "test_foreign_keys.json: passed over: gamma, delta"
    ]
