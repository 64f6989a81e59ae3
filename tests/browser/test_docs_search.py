"""The search of the site that `make docs` writes."""

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.conftest import ROOT, Tab, until
from tests.test_docs_site import ASKED

pytestmark = pytest.mark.browser
SITE = Path(os.environ.get("RLBOOST_SITE", ROOT / "build" / "site"))
FIRST = 3  # results among which the page must be


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not made: make docs")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_words_that_people_search_for_lead_to_their_pages(
    site: str, tab: Callable[..., Tab]
) -> None:
    page = tab().page
    for words, wanted in ASKED.items():
        page.goto(f"{site}/index.html?q={quote(words)}")
        until(page, "/document/.test(document.querySelector('.md-search-result__meta').innerText)")
        found = page.evaluate(
            "[...document.querySelectorAll('.md-search-result__item > a')].map(a => a.pathname)"
        )
        assert f"/{wanted.removesuffix('.md')}.html" in found[:FIRST], (words, found)
