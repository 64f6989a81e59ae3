"""A fingerprint names the attention that was chosen, for comparisons of two of them."""

import pytest

from rlboost_jax.settings.fingerprints import attention_of, composed, difference, with_bits


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "cpu"])
@pytest.mark.parametrize("attention", ["mosaic_gpu", "triton", "xla", ""])
def test_reads_what_was_written(device: str, attention: str) -> None:
    written = composed("0.12.0", device, attention=attention, digest="0123456789abcdef")
    assert attention_of(written) == attention
    assert written.startswith("jax0.12.0-") and written.endswith("-0123456789abcdef")


def test_what_was_seen_of_an_engine_tells_it_from_others_of_its_description() -> None:
    written = composed("0.12.0", "H100", attention="triton", digest="0123456789abcdef")
    seen = with_bits(written, "ab")
    assert seen == with_bits(written, "ab") != with_bits(written, "ba")
    assert seen != written and attention_of(seen) == "triton" and len(seen) == len(written)


@pytest.mark.parametrize(
    "text", ["", "same", "jax1-cpu-0123", "xla", "-", "a-triton", "a-triton-b"]
)
def test_reads_nothing_else(text: str) -> None:
    assert attention_of(text) == ""


def test_the_difference_is_put_in_words() -> None:
    ours = composed("0.12.0", "H100", attention="mosaic_gpu", digest="a")
    theirs = composed("0.12.0", "H100", attention="xla", digest="b")
    words = difference(theirs, ours)
    assert "its attention is xla, and this run's is mosaic_gpu" in words
    assert "its attention is another" in difference("unheard of", ours)
    assert difference(composed("0.11.1", "H100", attention="mosaic_gpu", digest="c"), ours) == ""
    assert difference(theirs, "jax0.12.0-cpu-0123456789abcdef") == ""
