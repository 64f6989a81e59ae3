"""Errors that a second start with the same command would meet again."""


class Mistake(Exception):
    """Something must be changed before the same command can go on; the message says what."""


class ConfigError(Mistake, ValueError):
    """What is wrong and what to change, one line per mistake."""
