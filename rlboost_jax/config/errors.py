"""The one error that a wrong configuration gives."""


class ConfigError(ValueError):
    """What is wrong and what to change, one line per mistake."""
