"""An engine on two devices against the same on one."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.on_two_devices import KINDS
from tests.shared import measured_once


@pytest.fixture(scope="module")
def of_all_kinds(
    run_with_devices: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    source = "from tests.engine.on_two_devices import main; main()"
    return measured_once(
        tmp_path_factory,
        "engines-on-two-devices",
        lambda: json.loads(run_with_devices(source, 2, optimized=True)),
    )


@pytest.fixture(params=KINDS)
def measured(of_all_kinds: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    return of_all_kinds[request.param]


def test_two_devices_sample_what_one_samples(measured: dict[str, Any]) -> None:
    assert measured["requests"] == 8
    assert measured["the same tokens"]
    assert measured["gap"] < 1e-5


def test_beside_any_other_requests(measured: dict[str, Any]) -> None:
    assert measured["first difference of rows"] == ""


def test_each_holds_half_of_the_pages(measured: dict[str, Any]) -> None:
    shapes = measured["shapes of pools"]
    assert shapes and all(shape == [[22, 4, 2, 8]] for shape in shapes), shapes
    of_one, of_two = measured["bytes of a page"]
    assert 2 * of_two == of_one


def test_each_holds_half_of_the_weights_as_planned(measured: dict[str, Any]) -> None:
    assert measured["the same weights"]
    first, other = measured["bytes of weights on each"]
    assert first == other < 0.6 * measured["bytes of weights on one"], measured
    assert abs(measured["bytes of weights as planned"] / first - 1) < 0.1, measured


def test_their_bits_are_not_taken_for_those_of_one(measured: dict[str, Any]) -> None:
    one, two = measured["fingerprints"]
    assert one != two


def test_weights_of_the_host_are_taken_too(measured: dict[str, Any]) -> None:
    assert measured["version after weights of the host"] == 2
