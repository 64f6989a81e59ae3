"""Which of the ways in which nobody answers it is: made by real sockets."""

import asyncio
import socket

import aiohttp
import pytest

from rlboost_jax.rollout.dialing import dial_problem


async def dialled(address: str, seconds: float = 30.0) -> str:
    timeout = aiohttp.ClientTimeout(total=seconds)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            async with session.get(f"http://{address}/config"):
                raise AssertionError("somebody answered")
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            return dial_problem(error, address)


def test_a_name_that_nobody_knows() -> None:
    said = asyncio.run(dialled("nobody.invalid:1234"))
    assert said.startswith("this host's DNS does not know 'nobody.invalid'")
    assert "fleet.public_address" in said


def test_a_port_where_nobody_listens() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        said = asyncio.run(dialled(address))
    assert said.startswith(f"nothing listens at {address}")


def test_one_that_never_answers() -> None:
    """As a firewall that drops what comes."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        said = asyncio.run(dialled(address, 0.05))
    assert said.startswith(f"no answer from {address}: a firewall drops it")


def test_one_that_hangs_up() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def story() -> str:
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await dialled(f"127.0.0.1:{port}")

    assert "is it a rlboost-jax manager?" in asyncio.run(story())


@pytest.mark.parametrize("number", [101, 113])
def test_no_way_there(number: int) -> None:
    said = dial_problem(OSError(number, "No route to host"), "10.0.0.9:4")
    assert said.startswith("there is no way from this host to 10.0.0.9:4")
