"""Order in which GPUs sum what they send each other.

NCCL may leave the sums to switches: those of NVLink where there are some ("NVLS"), and those of
InfiniBand where a variable asks for them ("CollNet"). Their order is not the program's: NVLink's
can differ from call to call and with what a process has allocated (NVIDIA/nccl, issues 1497 and
2360). Rings and trees add in an order that follows from the machines.
"""

import os
from collections.abc import MutableMapping
from typing import Final

IN_SWITCHES: Final = ("NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE")


def add_in_order(deterministic: bool, environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep switches from summing in a deterministic run, whatever the environment says.

    To be called before the first collective of this process: NCCL reads its variables once.
    Engines need none of this: they gather, and add by themselves (`tensor_parallel.py`).
    """
    if deterministic:
        environment.update(dict.fromkeys(IN_SWITCHES, "0"))
