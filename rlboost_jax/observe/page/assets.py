"""Files of the page, as they are in this package: no build step, nothing from elsewhere."""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

SHARED: Final = ("elements.js", "charts.js", "fleet.js", "differences.js", "samples.js")
SERVED: Final = {
    **dict.fromkeys((*SHARED, "live.js"), "text/javascript"),
    "style.css": "text/css",
}

# Content policy of the live page: its own files, its own server, and nothing in the markup.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def asset(name: str) -> str:
    """Text of a file."""
    return resources.files(__package__).joinpath("static", name).read_text("utf-8")


def report_script() -> str:
    """Script of a report, in one file."""
    return "\n".join(asset(name) for name in (*SHARED, "report.js"))


def comparison_script() -> str:
    """Script of a comparison of runs, in one file."""
    return "\n".join(asset(name) for name in ("elements.js", "charts.js", "comparison.js"))


def inert(values: Mapping[str, Any]) -> str:
    """Encode JSON for embedding: no text in it ends the element, or begins another."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def report_policy(script: str, style: str) -> str:
    """Content security policy of a report: its own script and style, and no requests."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
