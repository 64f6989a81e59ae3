"""Bytes per second of a pull over a line that loses packets, against the fluid bound of the line.

    python -m benchmarks.far_pull [--mbit=10] [--megabytes=8] [--congestion=cubic,bbr]

The line has 300 ms of round trip, loses a tenth of all packets each way, and its bandwidth. TCP is
the kernel's own, over TUN devices into a namespace (`lines/tun.py`, as root). The bound is what is
left of the bandwidth by losses and headers. Routes choose between CUBIC, which is that of a kernel
without BBR, and BBR, which the product asks for where there is one.
"""

import argparse
import asyncio
import hashlib
import logging
import sys
import tempfile
import time
from pathlib import Path

from aiohttp import web

from benchmarks.lines.tcp import HEADER_BYTES, SEGMENT_BYTES, Way
from benchmarks.lines.tun import HERE, cable
from rlboost_jax.messages import FileEntry, Manifest, PieceList
from rlboost_jax.sequences.identities import Version
from rlboost_jax.trust.credentials import Credentials, Endpoint
from rlboost_jax.weights import serve
from rlboost_jax.weights.arrivals import ByteCounter, FilesInMemory
from rlboost_jax.weights.connections import Connections
from rlboost_jax.weights.file_sources import Files, fetch
from rlboost_jax.weights.piece_lists import write_list
from rlboost_jax.weights.serve import weights_url

MBIT = 125_000  # bytes
LOSS, DELAY = 0.1, 0.15
FILES = 14
PULLS = 3  # over the same connections
ROOT = Path(__file__).parents[1]


def written(place: Path, num_bytes: int) -> tuple[Manifest, PieceList]:
    entries = []
    for number in range(FILES):
        data = hashlib.shake_256(bytes([number])).digest(num_bytes // FILES)
        (place / str(number)).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        entries.append(FileEntry(path=str(number), size=len(data), sha256=digest))
    pieces = PieceList(files=tuple(entries), leaves=())
    root = write_list(place, pieces, version=Version(0), params_digest="")
    return root, pieces


async def served(manifest: Manifest, far: list[str], mbit: float) -> None:
    """Serve it here, and have it pulled at the other end."""
    app = web.Application()
    serve.add_routes(app, serve.ServedVersions([serve.served_version(manifest)]))
    logging.getLogger("aiohttp.server").disabled = True  # who helps another hangs up
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, HERE, 0)
    await site.start()
    assert site._server is not None
    (listener,) = site._server.sockets
    port, place = listener.getsockname()[1], manifest.directory
    words = [*far, sys.executable, "-m", "benchmarks.far_pull", "--far", f"{HERE}:{port}", place]
    process = await asyncio.create_subprocess_exec(*words, str(mbit), cwd=ROOT)
    await process.wait()
    await runner.cleanup()


async def pull(address: str, place: str, mbit: float) -> None:
    """Pull it several times, with a line of figures for each."""
    size = sum(path.stat().st_size for path in Path(place).glob("[0-9]*"))
    there = Path(tempfile.mkdtemp())
    _, pieces = written(there, size)
    files = Files(place="it", directory=there, url=weights_url(0), files=pieces.files)
    server = Endpoint(address=address, credentials=Credentials(token=""))
    bound = mbit * MBIT * (1 - LOSS) * SEGMENT_BYTES / (SEGMENT_BYTES + HEADER_BYTES)
    async with Connections() as connections:
        for number in range(PULLS):
            began = time.monotonic()
            await fetch(
                files,
                files.files,
                FilesInMemory(),
                source="http",
                server=server,
                counter=ByteCounter(),
                connections=connections,
            )
            rate = size / (time.monotonic() - began)
            print(
                f"  pull {number}: {size / rate:6.2f} s, {rate / 1e3:7.0f} kB/s, "
                f"{rate / bound:.2f} of {bound / 1e3:.0f} kB/s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=float, default=10.0)
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--congestion", default="cubic,bbr")
    options = parser.parse_args()
    way = Way(delay=DELAY, loss=LOSS, bytes_per_second=options.mbit * MBIT)
    for name in options.congestion.split(","):
        print(f"{name}: {options.megabytes:g} MB, {options.mbit:g} Mbit/s", flush=True)
        with tempfile.TemporaryDirectory() as place, cable(way, way, congestion=name) as far:
            manifest, _ = written(Path(place), int(options.megabytes * 1e6))
            asyncio.run(served(manifest, far, options.mbit))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--far"]:
        address, place, mbit = sys.argv[2:]
        asyncio.run(pull(address, place, float(mbit)))
    else:
        main()
