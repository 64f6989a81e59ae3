from rlboost_jax.observe.pool_lines import pool_lines

POOL = {
    "name": "spot",
    "asked": 4,
    "granted": 3,
    "refused": 1,
    "lost": 2,
    "seconds_alive": 5400.0,
    "dollars": 1.35,
    "price_per_hour": 0.9,
    "tokens_per_second": 2345.6,
}


def event(kind: str, **detail: object) -> dict[str, object]:
    return {"time": 0.0, "step": 0, "kind": kind, "instance": "", "detail": detail}


def test_the_newest_counts() -> None:
    events = [
        event("pools", pools=[{**POOL, "asked": 1}]),
        event("pools", pools=[POOL]),
        event("lost"),
    ]
    assert list(pool_lines(events)) == [
        "pool spot: 4 asked, 3 granted, 1 refused, 2 lost; 1.50 instance-hours for $1.35, "
        "now $0.90 an hour at 2,346 tokens/s"
    ]
    assert not list(pool_lines([event("lost")]))
