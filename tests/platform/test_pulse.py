import os
import threading

from rlboost_jax.platform.pulse import (
    COMPILING,
    VARIABLE,
    Pulse,
    Sign,
    read_sign,
    shared_memory,
    show_pulse,
)


def shown() -> tuple[Pulse, int]:
    pulse, memory = Pulse(), shared_memory()
    pulse.show(memory)
    return pulse, memory


def test_what_is_done_shows_in_another_process():
    pulse, memory = shown()
    if (child := os.fork()) == 0:
        pulse.step()
        os._exit(0)
    os.waitpid(child, 0)
    assert read_sign(memory) == Sign(count=2, steps=1, phase="starting")
    os.close(memory)


def test_phases_lie_within_one_another():
    pulse, memory = shown()
    seen = [read_sign(memory)]

    def look() -> None:
        seen.append(read_sign(memory))

    with pulse.phase("step"):
        look()
        with pulse.phase("a name that is far longer than there is room for, ä"):
            look()
        look()
        pulse.compiling()
        look()
        pulse.beat()
        look()
    look()
    names = ["starting", "step", "a name that is far longer than there is room for"]
    assert [sign.phase for sign in seen] == [*names, "step", COMPILING, "step", "starting"]
    assert [sign.count for sign in seen] == sorted({sign.count for sign in seen}), "each is a sign"
    os.close(memory)


def test_other_threads_show_nothing():
    pulse, memory = shown()

    def work() -> None:
        pulse.beat()
        pulse.compiling()
        with pulse.phase("elsewhere"):
            pulse.beat()

    before = read_sign(memory)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert read_sign(memory) == before
    os.close(memory)


def test_a_variable_that_is_not_ours_harms_nobody():
    for value in ("nonsense", "987654"):
        environment = {VARIABLE: value}
        show_pulse(environment)
        assert not environment, "nor do children hear of it"
