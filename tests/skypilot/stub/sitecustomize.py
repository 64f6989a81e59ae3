"""On the path of a real SkyPilot API server: its executor, without clouds.

`sky.execution.launch` and `status`, `down` and `cancel` of `sky.core` are what the server's workers
run for a request. Here they start and end processes of this host in place of machines. All else is
SkyPilot's: its client, its server, its queue of requests, its checks of tasks and names.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["RLBOOST_TEST_SKY"])
sys.path.append(str(Path(__file__).parents[3]))


def launch(task: Any, cluster_name: str, *arguments: Any, **options: Any) -> tuple[None, None]:
    import sky
    from sky import exceptions

    from tests.providers import sky_machines

    (one,) = task.tasks if isinstance(task, sky.Dag) else (task,)
    (resources, *_) = one.resources
    assert resources.use_spot and resources.autostop_config.down, "it is to take itself down"
    config = one.to_yaml_config()
    secrets = {key: value.get_secret_value() for key, value in one._secrets.items()}
    try:
        sky_machines.launch(FOLDER, cluster_name, {**config, "secrets": secrets})
    except sky_machines.Unavailable as error:
        raise exceptions.ResourcesUnavailableError(*error.args) from None
    return None, None


def status(*arguments: Any, **options: Any) -> list[Any]:
    from sky.schemas.api import responses
    from sky.utils import status_lib

    from tests.providers import sky_machines

    return [
        responses.StatusResponse(
            name=name,
            launched_at=0,
            status=status_lib.ClusterStatus.UP,
            autostop=1,
            to_down=True,
            cluster_hash="x",
            cluster_ever_up=True,
            user_hash="x",
            user_name="x",
            workspace="default",
            is_managed=False,
            nodes=1,
        )
        for name in sky_machines.clusters(FOLDER)
    ]


def down(cluster_name: str, *arguments: Any, **options: Any) -> None:
    from sky import exceptions

    from tests.providers import sky_machines

    try:
        sky_machines.down(FOLDER, cluster_name)
    except sky_machines.NoSuchCluster as error:
        raise exceptions.ClusterDoesNotExist(*error.args) from None


def cancel(cluster_name: str, *arguments: Any, **options: Any) -> None:
    from sky import exceptions

    from tests.providers import sky_machines

    try:
        sky_machines.cancel(FOLDER, cluster_name)
    except sky_machines.NoSuchCluster as error:
        raise exceptions.ClusterDoesNotExist(*error.args) from None


STUBS = {"sky.execution": (launch,), "sky.core": (status, down, cancel)}


class Finder(importlib.abc.MetaPathFinder):
    """Puts the functions above into their modules as these are imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in STUBS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            for function in STUBS[name]:
                setattr(module, function.__name__, function)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
