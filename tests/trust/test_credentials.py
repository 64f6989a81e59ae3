"""What a request shows to be let in."""

import pytest

from rlboost_jax.trust.credentials import bearer_of, bears


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer secret", "secret"),
        ("bearer secret", "secret"),  # RFC 9110, section 11.1
        ("BEARER secret", "secret"),
        ("bEaReR secret", "secret"),
        ("Bearer   secret", "secret"),  # RFC 9110, section 11.4: 1*SP
        ("Bearer Secret", "Secret"),  # a token's case does matter
        ("Bearer", ""),
        ("Bearer ", ""),
        ("Bearersecret", ""),
        ("Bearer\tsecret", ""),
        ("Basic secret", ""),
        ("secret", ""),
        ("", ""),
    ],
)
def test_a_scheme_is_read_in_any_case(header: str, token: str) -> None:
    headers = {"Authorization": header}
    assert bearer_of(headers) == token
    assert bears(headers, "secret") is (token == "secret")
    assert not bears(headers, "")


def test_a_guess_of_other_characters_is_only_wrong() -> None:
    assert not bears({"Authorization": "Bearer \udcff"}, "secret")
    assert not bears({}, "secret")
