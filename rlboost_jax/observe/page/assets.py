"""The files of the page, as they lie in this package: no build, nothing from elsewhere."""

import base64
import hashlib
from importlib import resources
from typing import Final

SHARED: Final = ("elements.js", "charts.js", "fleet.js", "differences.js", "samples.js")
SERVED: Final = {
    **dict.fromkeys((*SHARED, "live.js"), "text/javascript"),
    "style.css": "text/css",
}

# Of the live page: its own files, its own server, and nothing that stands in the markup.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def asset(name: str) -> str:
    """The text of a file."""
    return resources.files(__package__).joinpath("static", name).read_text("utf-8")


def report_script() -> str:
    """All that a report needs, in one."""
    return "\n".join(asset(name) for name in (*SHARED, "report.js"))


def report_policy(script: str, style: str) -> str:
    """What a report may do: run this script, look like this, and ask nobody for anything."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
