"""Limits that settings, messages and programs share."""

from typing import Final

MAX_LEASE_SECONDS: Final = 2.0  # a silent server on a good line is lost by then
LONGEST_LEASE_SECONDS: Final = 300.0  # and on any other
FIRST_RENEWALS: Final = 32  # of a stream: each as soon as the one before is answered
MAX_SEED: Final = 2**31 - 1
MAX_STEPS: Final = 10**9  # of a run; programs count its updates in 32 bits
MAX_POSITIONS: Final = 2**18  # tokens of a slot; see rlboost_jax/models/rope.py
AGREEING: Final = 2  # servers that must have found the same scores of a teacher
MAX_STOP_IDS: Final = 8  # that an engine's slot has room for
MAX_STOP_STRINGS: Final = 16
MAX_STOP_STRING_BYTES: Final = 128  # of UTF-8
MAX_STOP_ROWS: Final = 2**15  # of the table that tells of stop strings: it travels with work
