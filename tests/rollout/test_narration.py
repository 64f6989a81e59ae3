"""What a server that was started by hand says of itself."""

from rlboost_jax.rollout.narration import IDLE_SECONDS, SAY_SECONDS, Narrator, ServerStatus


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def seen(held: int = 0, *, tokens: int = 0, version: int | None = 7, **others) -> ServerStatus:
    return ServerStatus(
        **({"connected": True, "trouble": ""} | others), version=version, tokens=tokens, held=held
    )


def test_a_life_in_lines() -> None:
    said: list[str] = []
    clock = Clock()
    narrator = Narrator(said.append, clock=clock)

    def look(after: float, now: ServerStatus) -> list[str]:
        clock.seconds += after
        narrator.look(now)
        lines, said[:] = list(said), []
        return lines

    assert look(0, seen(connected=False, version=None)) == [
        "nothing to do: no manager is reached; trying again"
    ]
    assert look(1, seen(version=None)) == ["nothing to do yet: the run's weights are not here"]
    assert look(1, seen(version=None)) == [], "said once"
    assert look(1, seen(3)) == ["ready with version 7"]
    assert look(SAY_SECONDS / 2, seen(3, tokens=100)) == []
    assert look(SAY_SECONDS / 2, seen(12, tokens=6000, version=8)) == [
        "version 8: 100 tokens/s, 12 requests held"
    ]
    assert look(IDLE_SECONDS / 2, seen(tokens=6000, version=8)) == [], "between two steps"
    (line,) = look(IDLE_SECONDS, seen(tokens=6000, version=8))
    assert line.startswith("nothing to do: the manager has no work for version 8; ")
    assert look(100, seen(2, tokens=6000, version=8)) == []
    assert look(SAY_SECONDS, seen(2, tokens=6000 + 1200, version=8)) == [
        "version 8: 20 tokens/s, 2 requests held"
    ], "without the pause before it"
    assert look(1, seen(2, tokens=7200, connected=False, trouble="wrong token")) == [
        "nothing to do: no manager is reached: wrong token; trying again"
    ]
