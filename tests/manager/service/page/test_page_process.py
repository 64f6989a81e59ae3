"""The page's process: who may see what, and with what it proves itself."""

import asyncio
import datetime
import json
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509

from configs import base
from rlboost_jax.manager.service.page.page_app import log_end, make_app
from rlboost_jax.manager.service.page.page_certificate import (
    OPEN,
    page_folder,
    page_line,
    write_url,
)
from rlboost_jax.manager.service.page.page_process import page_of
from rlboost_jax.observe.events_file import EventsWriter
from rlboost_jax.platform.proxies import opened
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.settings.page_config import PageConfig
from rlboost_jax.trust import authority
from rlboost_jax.trust.addresses import AddressUnusable
from rlboost_jax.trust.credentials import MANAGER_NAME
from rlboost_jax.trust.run_files import authority_folder, join_folder, trainer_folder
from tests.patience import PATIENCE_SECONDS

Run = Callable[..., Any]
OF_THE_RUN = ("/data/events", "/data/samples", "/data/samples/0-0", "/data/log", "/metrics")


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    write_run_config(folder / "config.json", run_config(base.get_config()), "abc123")
    (folder / "logs" / "manager.log").write_text("first\nlast\n")
    (folder / "secret").write_text("nobody's")
    (folder / "logs" / "link.log").symlink_to(folder / "secret")
    with EventsWriter(folder) as writer:
        writer.write(time=1e9, step=0, kind="joined", instance="spot-1")
    return folder


@asynccontextmanager
async def served(workdir: Path, token: str | None) -> AsyncIterator[str]:
    async with on_a_free_port(web.AppRunner(make_app(workdir, token=token))) as url:
        yield url


@asynccontextmanager
async def on_a_free_port(runner: web.AppRunner) -> AsyncIterator[str]:
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_the_line_at_the_start_leads_to_the_page_without_its_token(workdir: Path) -> None:
    assert page_line(workdir) == ""
    page_folder(workdir).mkdir(exist_ok=True)
    url = write_url(workdir, "127.0.0.1:4012", "secret").read_text().strip()
    line, opens = page_line(workdir), page_folder(workdir) / OPEN
    assert url == "https://127.0.0.1:4012/#secret"
    assert "https://127.0.0.1:4012/" in line and str(opens) in line and "secret" not in line
    assert url in opens.read_text()


def test_the_run_is_for_who_bears_the_token(workdir: Path, run: Run) -> None:
    async def story() -> None:
        async with served(workdir, "secret") as url, aiohttp.ClientSession() as session:
            for token in ("", "Bearer wrong", "secret", "Bearer secret "[:-2]):
                for path in OF_THE_RUN:
                    headers = {"Authorization": token}
                    async with session.get(url + path, headers=headers) as answer:
                        assert answer.status == 401, path
            for path in ("/", "/static/live.js", "/static/style.css"):
                async with session.get(url + path) as answer:
                    assert answer.status == 200
                    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            headers = {"Authorization": "bearer secret"}  # a scheme is read in any case
            async with session.get(url + "/metrics", headers=headers) as answer:
                assert 'rlboost_events_total{kind="joined"} 1.0' in await answer.text()
            async with session.get(url + "/data/events", headers=headers) as answer:
                assert await answer.content.readline() == b"event: begin\n"
                begin = json.loads((await answer.content.readline()).removeprefix(b"data: "))
                assert [life["instance"] for life in begin["lives"]] == ["spot-1"]

    run(story())


def test_without_a_token_only_by_a_name_of_this_host(workdir: Path, run: Run) -> None:
    """Another site's name may be made to lead to this host's address."""

    async def story() -> None:
        async with served(workdir, None) as url, aiohttp.ClientSession() as session:
            for host, status in (
                ("localhost:8080", 200),
                ("LOCALHOST", 200),
                ("127.0.0.1", 200),
                ("[::1]:8080", 200),
                ("[::1]", 200),
                ("elsewhere.example:8080", 421),
                ("elsewhere.example", 421),
                ("localhost.elsewhere.example", 421),
                ("127.0.0.1.elsewhere.example:80", 421),
            ):
                async with session.get(url + "/data/log", headers={"Host": host}) as answer:
                    assert answer.status == status

    run(story())


def test_with_a_token_by_names_that_were_given(workdir: Path, run: Run) -> None:
    async def story() -> None:
        runner = web.AppRunner(make_app(workdir, token="secret", hosts=("gpu7.lan",)))
        async with on_a_free_port(runner) as url, aiohttp.ClientSession() as session:
            for host, status in (
                ("localhost:8080", 200),
                ("10.1.2.3:8080", 200),
                ("[fe80::1]:8080", 200),
                (socket.gethostname(), 200),
                ("GPU7.lan:80", 200),
                ("gpu7.lan.elsewhere.example", 421),
                ("elsewhere.example:8080", 421),
                ("elsewhere.example", 421),
                ("", 421),
            ):
                headers = {"Host": host, "Authorization": "Bearer secret"}
                for path in ("/", "/data/log"):
                    async with session.get(url + path, headers=headers) as answer:
                        assert answer.status == status, host
                        assert status == 200 or "allowed_hosts" in await answer.text()

    run(story())


def test_logs_are_those_of_the_folder_and_no_others(workdir: Path) -> None:
    logs = workdir / "logs"
    assert log_end(logs, None) == {
        "names": ["manager.log"],
        "name": "manager.log",
        "text": "first\nlast\n",
    }
    for name in ("../config.json", "link.log", "../secret", ""):
        assert log_end(logs, name)["name"] == "manager.log"
    (logs / "manager.log").write_text("x" * 200_000 + "\nlast\n")
    assert log_end(logs, None)["text"] == "last\n"


def test_a_process_serves_it_once_somebody_connects(workdir: Path, run: Run) -> None:
    """And proves itself with a certificate that is no manager's."""
    authority.prepare(
        authority=authority_folder(workdir),
        servers=join_folder(workdir),
        trainer=trainer_folder(workdir),
        names=["localhost"],
        now=datetime.datetime.now(datetime.UTC),
    )
    reports: list[str] = []

    async def story() -> None:
        failed = asyncio.get_running_loop().create_future()
        settings = PageConfig(allowed_hosts=("gpu7.lan", MANAGER_NAME))
        async with page_of(
            workdir, settings, first=True, report=reports.append, fail=failed.set_exception
        ):
            url = (page_folder(workdir) / "url").read_text().strip()
            address, _, token = url.partition("/#")
            tls = ssl.create_default_context(cafile=page_folder(workdir) / "ca.pem")
            headers = {"Authorization": f"Bearer {token}"}
            request = urllib.request.Request(address + "/metrics", headers=headers)
            ask = partial(opened, timeout=PATIENCE_SECONDS, tls=tls)
            with await asyncio.to_thread(ask, request) as answer:  # of a process that has to start
                assert answer.status == 200
        failed.cancel()

    run(story())
    assert reports == []
    certificate = x509.load_pem_x509_certificate((page_folder(workdir) / "page.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert MANAGER_NAME not in names.get_values_for_type(x509.DNSName)
    assert "gpu7.lan" in names.get_values_for_type(x509.DNSName)
    for path in page_folder(workdir).iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_address_of_another_host(workdir: Path, run: Run) -> None:
    """A mistake at the first start; later it is one line among the events."""
    elsewhere, reports = PageConfig(host="192.0.2.1"), list[str]()

    async def served(*, first: bool) -> None:
        async with page_of(
            workdir, elsewhere, first=first, report=reports.append, fail=pytest.fail
        ):
            pass

    with pytest.raises(AddressUnusable, match=r"'192\.0\.2\.1' is no .*observe\.page\.host"):
        run(served(first=True))
    assert reports == []
    run(served(first=False))
    assert len(reports) == 1 and "192.0.2.1 cannot be listened on" in reports[0]
