"""A kernel that cannot run here is one line and no traceback, before anything is written."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from configs import base
from rlboost_jax.learner import training
from rlboost_jax.learner.setup import kernels
from rlboost_jax.learner.setup.makers import Makers
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.platform import exits
from rlboost_jax.qualification.learner_start import KernelNotAvailable
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig


def of_experts(**learner: Any) -> RunConfig:
    config = base.get_config()
    config.model.dtype, config.model.head_dim = "bfloat16", 64
    config.model.num_experts, config.model.experts_per_token, config.model.expert_dim = 4, 2, 128
    config.learner.row_tokens = 4096
    config.learner.update(learner)
    return run_config(config)


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"attention": "triton"}, "learner.attention is 'triton': triton is for GPUs and this is"),
        ({"experts": "mosaic_gpu"}, "learner.experts is 'mosaic_gpu': .* for GPU and this is cpu"),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_names_a_kernel_for_gpus_is_refused_on_a_cpu(
    tmp_path: Path,
    chosen: dict[str, str],
    says: str,
    begun: bool,
) -> None:
    """Whether a GPU chose it, for a run that goes on here with "auto", or a person did."""
    folder, given = tmp_path / "run", of_experts()
    named = dataclasses.replace(given, learner=dataclasses.replace(given.learner, **chosen))  # type: ignore[arg-type]
    if begun:
        with Workdir(folder, named):
            pass
    else:
        given = named
    makers = Makers(programs=pytest.fail)
    with pytest.raises(KernelNotAvailable, match=says) as caught:
        training.run_training(given, folder, makers=makers)
    assert "\n" not in str(caught.value) and exits.of_error(caught.value) == exits.MISTAKE
    assert folder.exists() == begun


@pytest.mark.parametrize(
    "learner",
    [{}, {"attention": "chunked", "experts": "blocks"}, {"attention": "dense", "experts": "xla"}],
)
def test_plain_forms_run_anywhere(learner: dict[str, str]) -> None:
    kernels.check(of_experts(**learner), make_mesh((1, 1, 1)))
