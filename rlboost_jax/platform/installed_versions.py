"""Versions of installed packages."""

import importlib.metadata


def versions_of(*prefixes: str) -> dict[str, str]:
    """Return the versions of all distributions with such a prefix, in order of their names.

    Args:
        prefixes: in lower case, with "-" for "_".
    """
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.name or "").lower().replace("_", "-")
        if name.startswith(prefixes):
            found.setdefault(name, distribution.version)  # the first one is imported
    return dict(sorted(found.items()))
