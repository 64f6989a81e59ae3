"""An H100 as its compiler and its data sheet describe it.

Sources: NVIDIA's H100 SXM5 data sheet for rates; openxla/xla's
xla/backends/gpu/target_config/specs/h100_sxm.txtpb for the compiler's description. NVIDIA's DGX
H100 has 8 GPUs a host, each with a network link of 400 Gbit/s.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from rlboost_jax.simulator.accelerators import DATA_SHEETS
from rlboost_jax.simulator.sim_config import ChipConfig

# Per second, of dense products by type of the factors; "tf32": float32 ones that may be rounded.
FLOPS = {
    "bf16": 989e12, "f16": 989e12, "f8e4m3fn": 1979e12, "f8e5m2": 1979e12,
    "tf32": 494e12, "f32": 67e12,
}  # fmt: skip
LEAST_FLOPS = 67e12  # of any other type: float64 on tensor cores
MEMORY_BYTES = 80e9
MEMORY_RATE = 3.35e12  # bytes per second
# Of 50 MB of second-level cache, in two halves that may hold the same; assumed: an array of this
# size is still there when the next kernel reads it.
CACHED_BYTES = 12.5e6
_CUDNN = 91000  # the version that the description names
HOST_DEVICES = 8  # that NVLink joins
NVLINK_RATE = 450e9  # bytes per second and direction
NETWORK_RATE = 50e9  # the same, of each GPU's own link to other hosts
PCIE_RATE = 55e9  # bytes per second and direction between a GPU and its host; assumed, of 64
# Assumed, of an iteration whose predicate the host reads: a copy, a wait, and starting anew.
TRIP_SECONDS = 20e-6
# Each kernel of a CUDA graph, measured on an H100 by others: Spector et al. 2025, "Look Ma, No
# Bubbles!", hazyresearch.stanford.edu. Kernels that are launched one by one take longer.
LAUNCH_SECONDS = 1.3e-6
# Data sheets by what JAX and `nvidia-smi` call the device. Others of the name (PCIe, NVL) have
# other memory, and no entry.
SHEETS = {"NVIDIA H100 80GB HBM3": "H100", "NVIDIA H200": "H200"}

# Among kernels for a product of which it may time none, XLA takes the first of a library that is
# not there without a device; allowed to time them it takes its own kernel, untimed. What else the
# first of these options does, the second does alone.
ABSENT = {"xla_gpu_deterministic_ops": False, "xla_gpu_enable_scatter_determinism_expander": True}
# Products by that library all the same, with what it can do beside them.
LIBRARY = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}

_TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 %s }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability 9.0a"
  device_address_bits: 64 pcie_bandwidth: 34359738368 ecc_enabled: true
  name: "NVIDIA H100 80GB HBM3" driver_version: "12.9.0" runtime_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0" dnn_version: "9.10.0"
  device_interconnect_info { active_links: 18 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def link_rate(devices: int, per_host: int) -> float:
    """Bytes per second and direction of a group that has `per_host` devices on each host.

    A ring across hosts goes over as many network links at once as a host has devices in it.
    """
    return NVLINK_RATE if devices == per_host else min(NVLINK_RATE, NETWORK_RATE * per_host)


def sheet_of(device_kind: str) -> ChipConfig | None:
    """The data sheet of a device that was measured; None: there is none, and so no bound."""
    name = SHEETS.get(device_kind)
    return DATA_SHEETS[name] if name else None


def devices(count: int) -> list[Any]:
    """So many H100s, on as many hosts as that takes, for programs that are compiled only."""
    import jax
    from jax.experimental import topologies

    hosts = -(-count // HOST_DEVICES)
    topology = f"1x{hosts}x{min(count, HOST_DEVICES)}"
    # Features of sm_90a: jax 0.10 always has them.
    features = "feature_extension: ACCELERATED_FEATURES" if _version(jax) >= (0, 11) else ""
    description = topologies.get_topology_desc(
        topology_name="h100", platform="cuda", target_config=_TARGET % features, topology=topology
    )
    return list(description.devices[:count])


@contextlib.contextmanager
def pretended(device: Any) -> Iterator[None]:
    """What asks for the default device while it is traced gets this one."""
    import jax

    with contextlib.ExitStack() as stack:
        for name, value in (
            ("default_backend", lambda *_, **__: "gpu"),
            ("local_devices", lambda *_, **__: [device]),
        ):
            stack.enter_context(mock.patch.object(jax, name, value))
        from jax._src.cudnn import fused_attention_stablehlo as cudnn

        for name, value in (
            ("check_cudnn_version", lambda: _CUDNN),
            ("check_compute_capability", lambda *_: True),
        ):
            stack.enter_context(mock.patch.object(cudnn, name, value))
        with contextlib.suppress(ImportError):  # Pallas of jax 0.10 does not ask
            from jax._src.pallas.triton import gpu_info

            of_h100 = gpu_info._get_gpu_info_impl(gpu_info.GpuVersion.H100)
            kind = jax.devices("cpu")[0].device_kind
            stack.enter_context(mock.patch.dict(gpu_info.registry, {kind: lambda: of_h100}))
        yield


def _version(jax: Any) -> tuple[int, ...]:
    return jax.__version_info__
