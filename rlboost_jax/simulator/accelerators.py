"""Accelerators by their data sheets: what a roofline needs to know of each.

Peak rates are for dense bfloat16. What programs reach of them is the configuration's
`…_efficiency`, the same for all: an assumption, which a measured `speed` replaces.

Source: NVIDIA's data sheets of each product.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rlboost_jax.simulator.sim_config import ChipConfig

DATA_SHEETS: Final[Mapping[str, ChipConfig]] = MappingProxyType(
    {
        "B200": ChipConfig(
            flops_per_second=2250e12, memory_bytes_per_second=7.7e12, memory_bytes=180e9
        ),
        "H200": ChipConfig(
            flops_per_second=989e12, memory_bytes_per_second=4.8e12, memory_bytes=141e9
        ),
        "H100": ChipConfig(
            flops_per_second=989e12, memory_bytes_per_second=3.35e12, memory_bytes=80e9
        ),
        "A100-80GB": ChipConfig(
            flops_per_second=312e12, memory_bytes_per_second=2.039e12, memory_bytes=80e9
        ),
        "A100-40GB": ChipConfig(
            flops_per_second=312e12, memory_bytes_per_second=1.555e12, memory_bytes=40e9
        ),
        "L40S": ChipConfig(
            flops_per_second=362e12, memory_bytes_per_second=0.864e12, memory_bytes=48e9
        ),
        "L4": ChipConfig(
            flops_per_second=121e12, memory_bytes_per_second=0.3e12, memory_bytes=24e9
        ),
    }
)


def device_of(chip: ChipConfig) -> str:
    """Name of the data sheet that a configuration has copied; "" where there is none."""
    return next((name for name, sheet in DATA_SHEETS.items() if sheet == chip), "")
