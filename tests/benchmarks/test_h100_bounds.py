"""What a simulation takes from the table: laws put into rows by hand come out, and what is kept is
what the rows of the table say."""

import json
from typing import Any

import pytest

from benchmarks.h100 import derived
from benchmarks.h100.bounds import bounds_of, server, training
from benchmarks.h100.checkpoints import run_of
from benchmarks.h100.names import gradients_name, packed_size
from benchmarks.h100.simulated import comparison
from configs.sim import h100

ROWS: list[dict[str, Any]] = json.loads(derived.TABLE.read_text())["rows"]


@pytest.mark.parametrize(("name", "gpus"), [("qwen3_8b_openr1", 1), ("qwen3_14b_openr1", 2)])
def test_a_decode_step_is_what_its_context_takes_and_the_rest(name: str, gpus: int) -> None:
    """A token of context costs 2 x layers x 8 heads x 128 numbers of two bytes to read.

    Each query head has 4 x 128 FLOPs for it in every layer.
    """
    layers, heads, slots = {1: (36, 32, 64), 2: (40, 40, 32)}[gpus]
    token = 2 * layers * 8 * 128 * 2 / 3.35e12 + 4 * 128 * layers * heads / 989e12
    decode = {"seconds_serial": 8 * (0.007 + slots * 1000 * token / gpus), "context": 1000.0}
    found = server(run_of(name), decode, {"seconds_serial": 0.0512})
    assert found["context_token_seconds"] == pytest.approx(token / gpus)
    assert found["step_seconds"] == pytest.approx(0.007)
    assert found["prefill_token_seconds"] == pytest.approx(0.0512 / (256 / gpus))


def test_a_learners_seconds_are_linear_in_tokens_and_pairs() -> None:
    def row(count: int, tokens: int) -> dict[str, Any]:
        each = 2e-5 * tokens + 6e-10 * tokens**2 / 2
        return {
            "program": gradients_name(count, tokens),
            "tokens": count * tokens,
            "seconds_serial": count * each,
        }

    found = training([row(1000, 4096), row(2000, 2048), row(4000, 1024)])
    assert found["token_seconds"] == pytest.approx(2e-5)
    assert found["pair_seconds"] == pytest.approx(6e-10)
    assert training([row(8, 1000)]) == {
        "token_seconds": pytest.approx(2e-5 + 3e-7),
        "pair_seconds": 0.0,
    }


@pytest.mark.parametrize(
    ("name", "size"),
    [("gradients 8 x 14,848", (8, 14_848)), ("gradients 1,000 x 96", (1000, 96))],
)
def test_a_name_says_how_large_a_packed_batch_is(name: str, size: tuple[int, int]) -> None:
    assert packed_size(name) == size
    assert packed_size(gradients_name(*size)) == size


def test_a_name_of_another_program_says_no_size() -> None:
    with pytest.raises(ValueError, match="'critic gradients' is not named after a packed batch"):
        packed_size("critic gradients")


def test_a_run_without_rows_has_no_bounds() -> None:
    rows = [row for row in ROWS if row["program"] != "decode mosaic_gpu"]
    with pytest.raises(ValueError, match="qwen3_8b_openr1: the table lacks a program"):
        bounds_of("qwen3_8b_openr1", rows)


def test_all_that_is_kept_follows_from_the_rows() -> None:
    """Else `python -m benchmarks.h100.derived` writes it anew."""
    kept = json.loads(derived.TABLE.read_text())
    assert derived.BOUNDS.read_text() == derived.bounds_file(kept["rows"], jax=kept["jax"])
    assert derived.table(kept["rows"], jax=kept["jax"]) == kept


def test_a_run_is_simulated_at_one_share_of_its_bounds() -> None:
    """Through all that is between: the law, its table of four points, the engine and learner."""
    compared = [row for row in comparison(ROWS) if row["seconds_simulated"] is not None]
    assert {row["config"] for row in compared} == {*h100.BOUNDS}
    assert {row["program"].split()[0] for row in compared} == {"decode", "gradients"}
    for row in compared:
        expected = row["seconds_serial"] / h100.REACHED
        assert row["seconds_simulated"] == pytest.approx(expected, rel=2e-3), row
