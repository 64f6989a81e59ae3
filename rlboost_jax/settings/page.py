"""Settings of the page that shows a run in a browser while it runs."""

from dataclasses import dataclass

from rlboost_jax.settings.setting import setting


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
