"""What a server prints is kept for its manager: bounded, plain, without secrets."""

import logging

from rlboost_jax.messages import MAX_LINE, Said, decode_server, encode
from rlboost_jax.rollout.log_lines import KeptRecords, LogLines


def quiet(*secrets: str, kept: int = 100) -> LogLines:
    return LogLines(secrets, kept=kept, say=lambda line: None)


def test_lines_are_printed_and_kept_in_order() -> None:
    printed: list[str] = []
    log = LogLines(say=printed.append)
    log.say("one\ntwo")
    log.say("three")
    assert printed == ["one\ntwo", "three"]
    assert log.take(2) == (("one", "two"), 0)
    assert log.take(9) == (("three",), 0) and log.take(9) == ((), 0)


def test_too_many_lines_cost_the_oldest_and_are_counted() -> None:
    log = quiet(kept=3)
    for number in range(10):
        log.say(str(number))
    assert log.take(9) == (("7", "8", "9"), 7)
    assert log.take(9) == ((), 0)


def test_no_line_shows_a_secret_or_moves_a_terminal() -> None:
    log = quiet("s3cret-token", "short")
    log.say("header Bearer s3cret-token\x1b[2J of a short name")
    log.say("x" * 10_000)
    lines, _ = log.take(9)
    assert lines[0] == "header Bearer *** [2J of a short name"
    assert lines[1] == "x" * MAX_LINE
    assert decode_server(encode(Said(lines=lines))) == Said(lines=lines), "a manager takes them"


def test_warnings_of_libraries_are_among_them() -> None:
    log, logger = quiet(), logging.getLogger("of.a.library")
    handler = KeptRecords(log)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        logger.warning("a cable is loose: %s", 3)
        logger.info("nothing")
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    assert log.take(9) == (("warning of.a.library: a cable is loose: 3",), 0)
