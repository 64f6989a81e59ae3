"""Processes whose words nobody reads, and what comes out where somebody does after all."""

import fcntl
import itertools
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlboost_jax.platform.output_relay import PROGRAM
from rlboost_jax.platform.output_relay_process import RelayedStream
from rlboost_jax.platform.process_liveness import start_time
from tests.patience import PATIENCE_SECONDS

LINES = 14_000  # of 100 bytes: more than a pipe and the relay keep
NUMBERS = 500  # lines of 1,000 bytes: more than two pipes and a small stream keep
DROPPED = re.compile(r"\[([\d,]+) lines? w(?:as|ere) dropped here: nobody read them\]")
SPEAK = """
import os, signal, sys, time
from rlboost_jax.platform.output_relay import finish, speak_through_relay
speak_through_relay(SECONDS)
"""
SHOUT = f"""
for number in range({LINES}):
    print(f"{{number:08d}} {{'x' * 90}}")
"""


def speech(source: str, seconds: float = 0.05) -> str:
    """A program that speaks through a relay, which has so long for what is not read at its end."""
    return SPEAK.replace("SECONDS", str(seconds)) + textwrap.dedent(source)


def speaking(source: str, **options: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", speech(source)], **options)  # type: ignore[call-overload]


def heard(source: str, **options: object) -> "subprocess.Popen[bytes]":
    """One whose words are read, however long that takes."""
    command = [sys.executable, "-c", speech(source, PATIENCE_SECONDS)]
    return subprocess.Popen(command, **options)  # type: ignore[call-overload]


def dropped(text: str) -> list[int]:
    """How many lines went, for each place where some are missing: as many as a slow writer left."""
    return [int(m[1].replace(",", "")) for m in map(DROPPED.fullmatch, text.split("\n")) if m]


def all_of(descriptor: int) -> bytes:
    """What can be read until the end."""
    parts = []
    try:
        while select.select([descriptor], [], [], PATIENCE_SECONDS)[0]:
            if not (data := os.read(descriptor, 2**16)):
                break
            parts.append(data)
    except OSError:  # of a terminal that everybody has left
        pass
    return b"".join(parts)


def test_one_whose_words_nobody_reads_ends_as_it_would():
    process = speaking(SHOUT + "sys.exit(3)", stdout=subprocess.PIPE)
    assert process.wait(PATIENCE_SECONDS) == 3
    process.communicate()


@pytest.mark.parametrize("number", [1, 2])
def test_nor_does_a_library_wait_that_writes_to_the_descriptor(number):
    source = f"for _ in range({LINES}): os.write({number}, b'x' * 99 + b'\\n')"
    with speaking(source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.wait(PATIENCE_SECONDS) == 0


def test_what_was_dropped_is_counted_where_it_is_missing():
    reads, writes = os.pipe()
    source = SHOUT + "sys.stdout.flush(); os.close(int(sys.argv[1])); input(); print('later')"
    mark_reads, mark_writes = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", speech(source, PATIENCE_SECONDS), str(mark_writes)],
        stdin=subprocess.PIPE,
        stdout=writes,
        pass_fds=[mark_writes],
    )
    os.close(writes)
    os.close(mark_writes)
    all_of(mark_reads)  # it has printed everything
    os.close(mark_reads)
    assert process.stdin is not None
    early = os.read(reads, 2**16)  # somebody reads again
    process.stdin.close()
    text = (early + all_of(reads)).decode()
    os.close(reads)
    process.wait(PATIENCE_SECONDS)
    said = dropped(text)
    kept = re.findall(r"^(\d{8}) x{90}$", text, re.MULTILINE)
    assert kept == sorted(kept) and kept[-1] == f"{LINES - 1:08d}", "the newest are kept, in order"
    # One that is cut just before its end looks whole, and counts as dropped.
    assert said and LINES <= len(kept) + sum(said) <= LINES + len(said)


def test_standard_output_and_error_keep_their_order_in_one_place():
    source = "\n".join(f"print({n}, file=sys.std{'err' if n % 2 else 'out'})" for n in range(40))
    process = heard(source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert output.split() == [str(n).encode() for n in range(40)]


def test_the_last_words_of_one_that_crashes_are_passed_on():
    source = "print('before'); os.write(2, b'last words\\n'); os.kill(os.getpid(), signal.SIGKILL)"
    process = heard(source, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (output, errors) == (b"before\n", b"last words\n")
    assert process.returncode == -signal.SIGKILL


def test_one_whose_reader_has_gone_goes_on():
    reads, writes = os.pipe()
    os.close(reads)
    process = speaking(SHOUT, stdout=writes, stderr=writes)
    os.close(writes)
    assert process.wait(PATIENCE_SECONDS) == 0


KILL = """
from rlboost_jax.platform import output_relay
relay = output_relay._running[0]
def kill():
    while (gone := relay._process).poll() is not None:
        time.sleep(0.001)  # the one before has no successor yet
    gone.kill()
    gone.wait()
"""


def test_a_relay_that_is_killed_has_a_successor():
    """Also for children, who hold the same pipe: one that prints is not told that it is broken."""
    source = """
        import subprocess
        print("before")
        os.read(0, 1)  # that was heard
        for number in range(3):
            kill()
            print(f"after {number}")
            child = [sys.executable, "-c", f"print('child {number}', flush=True)"]
            subprocess.run(child, check=True)
        raise RuntimeError("last words")
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = heard(KILL + textwrap.dedent(source), **pipes)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"before\n"
    output, errors = process.communicate(b".", timeout=PATIENCE_SECONDS)
    # What a relay had read when it was killed is gone; all else is there, in order.
    said = [f"{who} {n}" for n in range(3) for who in ("after", "child")]
    found = output.decode().split("\n")[:-1]
    assert [line for line in said if line in found] == found and found[-1] == "child 2"
    assert errors.endswith(b"RuntimeError: last words\n") and process.returncode == 1


def test_without_a_successor_the_last_words_go_straight():
    source = KILL + textwrap.dedent("""
        sys.executable = os.devnull  # none can be started
        print("nobody reads")
        os.read(0, 1)
        kill()
        print("this", flush=True)
        from rlboost_jax.platform import exits
        exits.leave("error: last words", 2, at_once=True)
    """)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = heard(source, **pipes)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"nobody reads\n"
    output, errors = process.communicate(b".", timeout=PATIENCE_SECONDS)
    assert (output, errors) == (b"this\n", b"error: last words\n") and process.returncode == 2


def test_a_relay_that_is_killed_ends_nobody():
    process = speaking(KILL + "kill()\n" + SHOUT, stdout=subprocess.PIPE)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0


def test_signals_for_those_who_print_are_none_for_the_relay():
    """Nor does the terminal send it any: it is in a session of its own."""
    source = """
        from rlboost_jax.platform import output_relay
        relay = output_relay._running[0]._process.pid
        assert os.getsid(relay) == relay
        print("before")
        input()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(relay, number)
        print("after")
    """
    process = heard(source, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"before\n"
    output, _ = process.communicate(b"\n", timeout=PATIENCE_SECONDS)
    assert output == b"after\n" and process.returncode == 0


def test_a_relay_that_stands_still_keeps_nobody_from_ending():
    source = """
        from rlboost_jax.platform import output_relay
        relay = output_relay._running[0]._process.pid
        os.kill(relay, signal.SIGSTOP)
        os.write(int(sys.argv[1]), str(relay).encode())
        print("words")
    """
    reads, writes = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", speech(source), str(writes)],
        stdout=subprocess.DEVNULL,
        pass_fds=[writes],
    )
    os.close(writes)
    relay = int(os.read(reads, 100))
    os.close(reads)
    try:
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        os.kill(relay, signal.SIGKILL)


def test_a_relay_whose_words_nobody_takes_ends_with_its_process():
    source = """
        from rlboost_jax.platform import output_relay
        os.write(int(sys.argv[1]), str(output_relay._running[0]._process.pid).encode())
    """
    reads, writes = os.pipe()
    hears, target = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", speech(source) + SHOUT, str(writes)],
        stdout=target,
        pass_fds=[writes],
    )
    os.close(target)
    os.close(writes)
    relay = int(os.read(reads, 100))
    assert process.wait(PATIENCE_SECONDS) == 0
    taken = threading.Event()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while start_time(relay):  # it holds the pipe, which is full
        assert time.monotonic() < deadline
        taken.wait(0.01)
    for each in (reads, hears):
        os.close(each)


def test_whoever_ends_has_had_its_words_passed_on():
    """What comes after it, such as a shell's prompt, comes behind them."""
    source = """
        from rlboost_jax.platform import output_relay
        output_relay.LEAVE_SECONDS = 0.0
        output_relay._running[0]._seconds = float(sys.argv[2])
        print("x" * 60_000)
        finish()
        waiting = fcntl.ioctl(int(sys.argv[1]), termios.FIONREAD, bytes(4))
        sys.exit(0 if struct.unpack("i", waiting)[0] == 60_001 else 1)
    """
    reads, writes = os.pipe()
    imports = "import fcntl, struct, termios\n"
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", imports + speech(source)),
            *(str(reads), str(PATIENCE_SECONDS)),
        ],
        stdout=writes,
        pass_fds=[reads],
    )
    os.close(writes)
    assert process.wait(PATIENCE_SECONDS) == 0
    os.close(reads)


WITHOUT_A_THREAD = """
def none_left(*_):
    raise RuntimeError("can't start new thread")
threading._start_new_thread = none_left
"""


@pytest.mark.parametrize("lacking", ["sys.executable = os.devnull", WITHOUT_A_THREAD])
def test_where_no_relay_can_be_started_words_go_straight(lacking):
    source = f"""
import os, sys, threading
from rlboost_jax.platform.output_relay import speak_through_relay
{lacking}
before = sorted(os.listdir("/proc/self/fd"))
print(speak_through_relay(), flush=True)
print(sorted(os.listdir("/proc/self/fd")) == before, flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "None\nTrue\n"), done.stderr


def test_a_target_that_would_not_wait_is_waited_for():
    """Whoever has the same terminal may have made it so."""
    (source, speaks), (hears, target) = os.pipe(), os.pipe()
    os.set_blocking(target, False)
    stream = RelayedStream(source, target)
    for number in range(NUMBERS):
        os.write(speaks, f"{number:0999d}\n".encode())
    os.close(speaks)
    stream.reader.join(PATIENCE_SECONDS)
    heard = b""
    while len(heard) < 1000 * NUMBERS and select.select([hears], [], [], PATIENCE_SECONDS)[0]:
        heard += os.read(hears, 2**16)
    assert heard == b"".join(f"{number:0999d}\n".encode() for number in range(NUMBERS))
    for each in (source, hears, target):
        os.close(each)


def test_a_disk_that_is_full_takes_what_fits(tmp_path):
    with open("/dev/full", "wb") as full:
        process = speaking(SHOUT, stdout=full)
        assert process.wait(PATIENCE_SECONDS) == 0


def on_terminal(source: str, seconds: float = 0.05) -> "tuple[subprocess.Popen[bytes], int]":
    """The process, whose terminal it is, and our end; `seconds` as in `speech`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 123, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", speech(source, seconds)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    return process, ours


def test_a_terminal_is_still_one():
    process, ours = on_terminal(
        "from rlboost_jax.observe.console import Console\n"
        "with Console(num_steps=2) as console:\n"
        "    print(console._live is not None, console._console.size)\n",
        PATIENCE_SECONDS,
    )
    text = all_of(ours).decode()
    assert "True ConsoleDimensions(width=123, height=40)" in text, text
    assert process.wait(PATIENCE_SECONDS) == 0
    os.close(ours)


def test_an_interrupt_reaches_one_whose_terminal_stands_still(tmp_path: Path):
    """Under Ctrl-S, with more printed than anybody takes."""
    waits = f"open({str(tmp_path / 'said')!r}, 'w').close()\nwhile True: time.sleep(0.1)"
    process, ours = on_terminal("input()\n" + SHOUT + waits)
    os.write(ours, b"\x13")
    os.write(ours, b"\n")
    said = threading.Event()
    while not (tmp_path / "said").exists():
        assert process.poll() is None
        said.wait(0.01)
    os.write(ours, b"\x03")
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGINT
    os.close(ours)


def test_all_is_said_to_be_through_while_others_may_still_speak():
    """A process need not wait for its children to end: what they say later is passed on all the
    same."""
    (source, speaks), (hears, target) = os.pipe(), os.pipe()
    relay = subprocess.Popen(
        [sys.executable, "-I", "-S", PROGRAM, "3600", f"{source}:{target}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(source, target),
    )
    os.close(source)
    os.close(target)
    os.write(speaks, b"early\n")
    assert relay.stdin is not None and relay.stdout is not None
    relay.stdin.close()
    assert select.select([relay.stdout], [], [], PATIENCE_SECONDS)[0]
    assert relay.stdout.read(1) == b"." and os.read(hears, 2**16) == b"early\n"
    os.write(speaks, b"late\n")
    os.close(speaks)
    assert all_of(hears) == b"late\n" and relay.wait(PATIENCE_SECONDS) == 0
    relay.stdout.close()
    os.close(hears)


def test_a_line_without_an_end_counts_as_one():
    """More than may wait, and nobody reads: its second half is not written, though it would fit."""
    (source, speaks), (hears, target) = os.pipe(), os.pipe()
    os.set_blocking(target, False)
    while select.select([], [target], [], 0)[1]:
        os.write(target, bytes(2**12))
    stream = RelayedStream(source, target, most=2**17)
    for _ in range(2**6):
        os.write(speaks, b"-" * 2**12)
    os.close(speaks)
    stream.reader.join(PATIENCE_SECONDS)
    heard = b""
    while not stream.idle or select.select([hears], [], [], 0)[0]:
        if select.select([hears], [], [], 0.01)[0]:
            heard += os.read(hears, 2**16)
    assert heard.endswith(b"[1 line was dropped here: nobody read them]\n"), heard[-100:]
    for each in (source, hears, target):
        os.close(each)


# Even: none ends just before the end of a line, for what of such a line is written looks whole,
# and it counts as dropped.
@pytest.mark.parametrize("piece", [98, 778, 1000, 2002])
@pytest.mark.parametrize("seconds", [0.0, 0.002])
def test_reading_never_waits_for_writing_and_keeps_the_newest(
    piece: int, seconds: float, monkeypatch
):
    """By threads of this process: a pipe that is full, whose reader comes later; a writer that is
    slow to fill it, too, and so finds lines dropped again and again."""
    monkeypatch.setattr(RelayedStream, "_written", late(RelayedStream._written, seconds))
    (source, speaks), (hears, target) = os.pipe(), os.pipe()
    stream = RelayedStream(source, target, most=2**17)
    os.set_blocking(target, True)
    text = b"".join(f"<{number:0998d}\n".encode() for number in range(NUMBERS))
    for at in range(0, len(text), piece):
        os.write(speaks, text[at : at + piece])
        while select.select([source], [], [], 0)[0]:  # each is read for itself
            pass
    os.close(speaks)
    stream.reader.join(PATIENCE_SECONDS)
    assert stream.ended and not stream.idle
    heard = b""
    while not stream.idle or select.select([hears], [], [], 0)[0]:
        if select.select([hears], [], [], 0.01)[0]:
            heard += os.read(hears, 2**16)
    lines = heard.decode().split("\n")
    numbers = [int(line[1:]) for line in lines if re.fullmatch(r"<\d{998}", line)]
    assert numbers == sorted(numbers) and numbers[-1] == NUMBERS - 1
    said = dropped(heard.decode())
    assert said and len(numbers) + sum(said) == NUMBERS
    after = [line for mark, line in itertools.pairwise(lines) if DROPPED.match(mark)]
    assert after and all(line.startswith(("<", "[")) for line in after), "half a line is no use"
    for each in (source, hears, target):
        os.close(each)


def late(act: Callable[..., bool], seconds: float) -> Callable[..., bool]:
    def acts(*arguments: object) -> bool:
        threading.Event().wait(seconds)
        return act(*arguments)

    return acts
