"""Which programs are compiled: every configuration, over its own mesh and others."""

from collections.abc import Iterator
from dataclasses import dataclass

# The first is the configuration's own; (1, 8, 1) is the README's example; an 8B on 4 devices is too
# large, and a test looks whether the plan says so.
MESHES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "qwen25_05b_gsm8k": ((1, 1, 1), (1, 8, 1)),
    "qwen3_06b_gsm8k": ((1, 1, 1), (1, 8, 1)),
    "llama32_1b_lora": ((1, 1, 1), (1, 8, 1)),
    "qwen3_8b_openr1": ((1, 8, 1), (1, 1, 8), (1, 2, 4), (1, 4, 1)),
    "qwen3_14b_openr1": ((1, 8, 1), (1, 1, 8), (1, 2, 4)),
    "qwen3_32b_openr1": ((1, 16, 1), (1, 2, 8), (1, 8, 2)),
    "qwen3_30b_a3b_moe": ((1, 16, 1), (1, 4, 4), (1, 2, 8)),
}
ATTENTION = ("auto", "mosaic_gpu")
# Whose sizes the kernels are compiled for by themselves: heads of 64 and of 128, one and 4 GPUs.
KERNELS = ("qwen25_05b_gsm8k", "qwen3_8b_openr1", "qwen3_30b_a3b_moe")


@dataclass(frozen=True)
class Job:
    """Programs that one process compiles, one after the other."""

    part: str  # "learner", "engine" or "kernels"
    config: str
    mesh: tuple[int, ...] = ()  # of the learner
    attention: str = ""  # of the engine
    only: tuple[str, ...] = ()  # how the names of programs begin that are compiled; (): all are
    dtype: str = ""  # of weights, activations, keys and values, in place of the configuration's
    layers: int = 0  # of the model, in place of the checkpoint's; 0: all
    library: bool = False  # products by cuBLAS, in place of XLA's own kernels
    drafts: bool = False  # free rows of the engine's decode steps may hold drafts

    def __str__(self) -> str:
        mesh = ",".join(map(str, self.mesh))
        layers = f"{self.layers} layers" if self.layers else ""
        only = " and ".join(self.only)
        library = "cuBLAS" if self.library else ""
        drafts = "drafts" if self.drafts else ""
        words = (self.part, self.config, mesh, self.attention, only, self.dtype, layers, library)
        words += (drafts,)
        return " ".join(filter(None, words))


def verifying(config: str) -> Job:
    """The job of an engine's decode steps with drafts."""
    return Job("engine", config, attention="mosaic_gpu", only=("verify",), drafts=True)


def all_jobs() -> Iterator[Job]:
    """Configuration by configuration."""
    for config, meshes in MESHES.items():
        for mesh in meshes:
            yield Job("learner", config, mesh=mesh)
        for attention in ATTENTION:
            yield Job("engine", config, attention=attention)
        yield verifying(config)
        if config in KERNELS:
            yield Job("kernels", config)
