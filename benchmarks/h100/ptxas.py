"""Registers, spills and shared memory of compiled kernels, as the assembler reports them, and
whether they are what float32 means.

XLA assembles the kernels that it writes, and those of Pallas Triton, with a library of its own
that says nothing. With NVIDIA's `ptxas` selected it takes that of the toolkit it is shown: here a
script that asks for a report and keeps it. Pallas Mosaic writes the same report where it is asked
to.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_REPORTS = """#!/bin/sh
'{ptxas}' -v "$@" 2> '{folder}'/$$.ptxas
code=$?
cat '{folder}'/$$.ptxas >&2
exit $code
"""
# Answers what versions there are, and assembles nothing.
_NOTHING = """#!/bin/sh
case " $* " in *" -o "*) ;; *) exec '{ptxas}' "$@" ;; esac
until [ "$1" = -o ]; do shift; done
: > "$2"
"""
# Of XLA's own making; the rest is ours.
_XLA = re.compile(r"fusion|^(wrapped|copy|loop|input|gemm|Memset|reduce|sort|command)")
_ENTRY = re.compile(r"Compiling entry function '(\S+)' for")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_PTX = re.compile(r"^\s*(?:\.visible )?\.entry ([\w$]+)", re.MULTILINE)
_TF32 = re.compile(r"\b(?:wg)?mma[\w.:]*\.tf32\b")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"^\d+: .*?\] (\S+) grid: .* shared_memory: (\d+) bytes", re.MULTILINE)
_SCRATCH = re.compile(r"smem_scratch_bytes=(\d+)")


@dataclass(frozen=True)
class Kernel:
    name: str
    registers: int  # of a thread; 255 at most
    spilled: int  # bytes of a thread that registers had no room for, stores and loads together
    shared: int | None = None  # bytes of a block, where known


def unassembled(folder: Path) -> dict[str, Any]:
    """Options with which XLA's kernels are written and not assembled, in two thirds of the time.

    What is read of the module, its memory included, is settled before.
    """
    return _options(folder, _NOTHING)


def _options(folder: Path, script: str) -> dict[str, Any]:
    """Options of a compilation that takes `script` for ptxas."""
    from nvidia import cuda_nvcc

    nvcc, toolkit = Path(next(iter(cuda_nvcc.__path__))), folder / "toolkit"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "nvvm").symlink_to(nvcc / "nvvm")
    ptxas = toolkit / "bin" / "ptxas"
    ptxas.write_text(script.format(ptxas=nvcc / "bin" / "ptxas", folder=folder))
    ptxas.chmod(0o755)
    return {"xla_gpu_enable_libnvptxcompiler": False, "xla_gpu_cuda_data_dir": str(toolkit)}


class Reports:
    """What is compiled with `options` reports into a folder.

    Mosaic looks at the environment when it is imported: make this before jax is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        os.environ.update(MOSAIC_GPU_DUMP_TO=str(folder), MOSAIC_GPU_DUMP_PTXAS="1")
        self.options = {**_options(folder, _REPORTS), "xla_dump_to": str(folder)}

    def with_tf32(self) -> list[str]:
        """Kernels since the last `take` whose products round float32 factors to TF32."""
        texts = (path.read_text(errors="replace") for path in self._folder.glob("*.ptx"))
        return sorted(name for text in texts for name in rounding_kernels(text))

    def take(self) -> list[dict[str, Any]]:
        """Kernels of our own since the last call, those with most registers first, and after
        them one for all of XLA's that has the worst of each."""
        shared: dict[str, int] = {}
        for path in self._folder.glob("*thunk_sequence.txt"):
            shared.update((name, int(size)) for name, size in _SHARED.findall(path.read_text()))
        kernels = [
            kernel for path in sorted(self._folder.glob("*.ptxas")) for kernel in _read(path)
        ]
        for path in self._folder.iterdir():
            if path.is_file():
                path.unlink()
        ours = [k for k in kernels if not _XLA.search(k.name)]
        theirs = [k for k in kernels if _XLA.search(k.name)]
        found = [
            Kernel(k.name, k.registers, k.spilled, shared.get(k.name, k.shared))
            for k in sorted(ours, key=lambda k: -k.registers)
        ]
        if theirs:
            worst = [max(k.registers for k in theirs), max(k.spilled for k in theirs)]
            found.append(Kernel(f"{len(theirs)} of XLA", *worst))
        return [asdict(kernel) for kernel in found]


def rounding_kernels(text: str) -> list[str]:
    """Names of the kernels in PTX that multiply with TF32 factors."""
    parts = _PTX.split(text)[1:]
    named = zip(parts[::2], parts[1::2], strict=True)
    return [name for name, body in named if _TF32.search(body)]


def _read(path: Path) -> Iterator[Kernel]:
    """The kernels of a report, and of Mosaic's the shared memory beside it."""
    text = path.read_text(errors="replace")
    scratch = path.with_suffix(".resources.txt")
    sizes = _SCRATCH.findall(scratch.read_text()) if scratch.exists() else []
    for part in text.split("ptxas info    : Compiling")[1:]:
        entry, used = _ENTRY.search(f"Compiling{part}"), _USED.search(part)
        if entry and used:
            spills = _SPILLS.search(part)
            spilled = sum(map(int, spills.groups())) if spills else 0
            yield Kernel(entry[1], int(used[1]), spilled, int(sizes[0]) if sizes else None)
