"""Reward functions that do what a user's might."""

import asyncio
import os
import random
import signal
import subprocess
import time

CALLS = []


def good(prompts, completions, **columns):
    return [float(len(completion)) for completion in completions]


def plain(prompts, completions):
    return [0.25]


def columns_of(prompts, completions, answer, *, scale=1.0, finished):
    return [scale * float(answer[0]) + finished[0]]


def raises(prompts, completions):
    raise KeyError("no such thing")


def raises_half_a_character(prompts, completions):
    raise ValueError("\ud83d")


def hangs(prompts, completions):
    while True:
        time.sleep(3600)


def hangs_with_children(prompts, completions):
    for command in (["sleep", "3600"], ["setsid", "sleep", "3600"]):
        subprocess.Popen(command)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def allocates(prompts, completions):
    kept = []
    while True:
        kept.append(bytearray(2**24))


def takes(prompts, completions, *, megabytes):
    return [float(len(bytearray(megabytes * 2**20)) > 0)]


def crashes(prompts, completions):
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves(prompts, completions):
    raise SystemExit(0)


def closes_its_pipe(prompts, completions):
    os.closerange(3, 1024)
    signal.pause()


def ends(prompts, completions):
    os._exit(0)


def not_a_number(prompts, completions):
    return [float("nan")]


def endless(prompts, completions):
    return [float("inf")]


def too_many(prompts, completions):
    return [1.0, 2.0]


def none_at_all(prompts, completions):
    return []


def no_list(prompts, completions):
    return 1.0


def text(prompts, completions):
    return "1"


async def coroutine(prompts, completions):
    return [1.0]


def of_completions(completions, **others):
    """As many written for TRL."""
    return [float(len(completions[0]) + 100 * len(others["prompts"][0]))]


def the_other_way_round(completions, prompts):
    return of_completions(completions, prompts=prompts)


def by_place(prompts, completions, /):
    return [1.0]


def by_other_names(questions, texts):
    return [1.0]


def shortest(prompts, completions, *, answer, finished):
    """Reward the responses of a group by how many are longer, and 10 more for the answer."""
    assert len(prompts) == len(completions) == len(answer) == len(finished)
    return [
        sum(len(other) > len(text) for other in completions) + 10.0 * (answer[0] in text)
        for text in completions
    ]


def fails_for_groups(prompts, completions):
    """In the way that the first response says."""
    ways = {"raise": raises, "crash": crashes, "hang": hangs, "few": plain}
    if completions[0] in ways:
        return ways[completions[0]](prompts, completions)
    return [
        float("nan") if text == "nan" else None if text == "none" else 1.0 for text in completions
    ]


def draws_for_groups(prompts, completions):
    return [random.random() for _ in completions]


async def meets(prompts, completions, *, port):
    """Goes on when the other side of a connection says so."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{completions[0]}\n".encode())
    line = await reader.readline()
    return [float(line)] * len(completions)


async def fails_awaited(prompts, completions):
    """Like `fails_for_groups`, or by allocating, leaving or being called off."""
    text = completions[0]
    if text == "cancel":
        raise asyncio.CancelledError
    others = {"allocate": allocates, "leave": leaves, "children": hangs_with_children}
    return others.get(text, fails_for_groups)(prompts, completions)


async def both(prompts, completions):
    """What no other call and no order shows in."""
    await asyncio.sleep(0)
    both_of = draws(prompts, completions), remembers(prompts, completions)
    return [a + b for a, b in zip(*both_of, strict=True)]


def words(prompts, completions):
    return ["one"]


def nothing_for_wrong_groups(prompts, completions):
    return [1.0 if text == "4" else None for text in completions]


def says_nothing(prompts, completions):
    return [None]


def array(prompts, completions):
    import numpy

    return numpy.array([0.5], numpy.float32)


def draws(prompts, completions):
    return [random.random()]


def remembers(prompts, completions):
    """What a call can see of the calls before it."""
    CALLS.append(completions[0])
    return [float(len(CALLS))]


def talks(prompts, completions):
    print("to standard output " * 10_000, flush=True)
    try:
        input()
    except EOFError:
        return [1.0]
    return [0.0]


def picky(prompts, completions):
    """Fails in its own way for each of these completions."""
    failures = {"raise": raises, "nan": not_a_number, "crash": crashes, "many": too_many}
    return failures.get(completions[0], plain)(prompts, completions)


not_callable = 7


def raised_in(function, line=1):
    """The end of a fault that names a line of a function here, counted from its `def`."""
    return f" ({os.path.basename(__file__)}, line {function.__code__.co_firstlineno + line})"
