"""Settings of the page that shows a run in a browser while it runs."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rlboost_jax.settings.setting import setting

_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9._-]{0,251}[a-z0-9_])?")


@dataclass(frozen=True, kw_only=True)
class PageConfig:
    """Where the manager serves it; see docs/how-to/page.md."""

    serve: bool = setting(
        True,
        "serve the run as a page, and its numbers for Prometheus",
        note="Read-only, for who has the address in <workdir>/page/url. A process of its own "
        "serves it, which is started once somebody connects.",
    )
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for browsers of other hosts")
    port: int = setting(0, "port to listen on; 0: a free one", at_least=0, at_most=65535)
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "additional host names that the page answers to, in lower case, without a port",
        note="This host's own name, localhost and numeric addresses are always allowed. Requests "
        "for other names are refused: any web site can point its own name at this host.",
    )


def host_mistakes(names: Iterable[str], setting: str) -> Iterator[str]:
    """Yield a line per name that cannot be a listener's host."""
    for name in names:
        if not _HOST.fullmatch(name):
            yield (
                f"{setting} has {name[:300]!r}; a name has lower-case letters, digits, dots and "
                "dashes, and neither scheme nor port"
            )
