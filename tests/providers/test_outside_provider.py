"""A provider of another package: found by its entry point or by its path, or refused by name."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from configs import tiny
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.providers.base import Rendezvous
from rlboost_jax.providers.provider_choice import open_launcher, open_provider
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.validation.run_checks import check, check_files

RUN = run_config(tiny.get_config())
MODULE = """
from rlboost_jax.providers.none import NoProvider

class Rented(NoProvider):
    def __init__(self, fleet, rendezvous):
        super().__init__()
        self.price, self.pool = fleet.options["price"], rendezvous.pool

def incomplete(rendezvous):
    return rendezvous

def greedy(fleet, region):
    return NoProvider()
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with an entry point, as pip leaves it."""
    (tmp_path / "renting.py").write_text(MODULE)
    folder = tmp_path / "renting-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: renting\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[rlboost_jax.providers]\nrented = renting:Rented\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "renting", raising=False)


def with_fleet(**settings: object) -> RunConfig:
    return replace(RUN, fleet=replace(RUN.fleet, **settings))


def rendezvous(folder: Path) -> Rendezvous:
    return Rendezvous(
        run_id="run", workdir=folder, address="a:1", local_address="a:1", join=folder / "join"
    )


@pytest.mark.parametrize("name", ["rented", "renting:Rented"])
def test_it_is_opened_with_its_options(name: str, tmp_path: Path) -> None:
    run = with_fleet(provider=name, options={"price": 0.5})
    check(run)
    check_files(run)
    provider = open_provider(run.fleet, rendezvous(tmp_path))
    assert type(provider).__name__ == "Rented"
    assert (vars(provider)["price"], vars(provider)["pool"]) == (0.5, "")
    assert open_launcher(run.fleet, rendezvous(tmp_path)) is None
    assert [each.path for each in run.outside_functions] == ["renting:Rented"]
    assert run.fleet.name_prefix == "rented"


def test_a_pool_has_options_of_its_own(tmp_path: Path) -> None:
    pool = {"name": "spot", "provider": "rented", "options": {"price": 0.25}}
    values = tiny.get_config()
    values.fleet.pools = (pool,)
    (inside,) = run_config(values).fleet.pools
    assert inside.options == {"price": 0.25}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"provider": "rentd"}, "fleet.provider 'rentd' does not exist; .*; yours is 'package.mo"),
        ({"provider": "renting:Rentd"}, "no 'Rentd' in renting; did you mean 'Rented'"),
        ({"provider": "renting:greedy"}, "'region'; it is given fleet, rendezvous, by name"),
        ({"options": {"price": 1}}, "fleet.provider 'local' has settings of its own"),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(
    settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run = with_fleet(**settings)
        check(run)
        check_files(run)


def test_what_it_makes_has_to_be_a_provider(tmp_path: Path) -> None:
    run = with_fleet(provider="renting:incomplete")
    with pytest.raises(ConfigError, match="makes Rendezvous, which has no request"):
        open_provider(run.fleet, rendezvous(tmp_path))
