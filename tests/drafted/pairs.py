"""A few runs in which each pair of values that two factors can have together comes up."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product

Row = Mapping[str, str]  # a value of each factor
Pair = tuple[tuple[str, str], ...]  # two, in the order of the factors

FACTORS: Mapping[str, tuple[str, ...]] = {
    # Whose drafts: those that the product has, and three that are wrong (`system/paced/drafting`).
    "drafter": ("siblings", "prompt", "recent", "epochs", "all", "random", "another", "short"),
    "fleet": ("calm", "chaos", "migration"),
    "devices": ("own", "shared"),
    "lag": ("0", "1"),
    "numbers": ("float32", "bfloat16"),
    "trained": ("everything", "adapters"),
    "layers": ("dense", "experts"),
    "parallel": ("1", "2"),
    "sampling": ("whole", "truncated"),
    "turns": ("one", "several"),
    "noise": ("inverse_cdf", "tree"),
}
RUN = ("drafter", "fleet", "devices")  # all others are settings of the run that it is compared with
IMPOSSIBLE: Mapping[Pair, str] = {}  # and why


def pairs_of(row: Row) -> set[Pair]:
    return {*combinations(row.items(), 2)}


def possible_pairs(
    factors: Mapping[str, Sequence[str]] = FACTORS, impossible: Iterable[Pair] = tuple(IMPOSSIBLE)
) -> set[Pair]:
    """Every pair of values of two factors, but for those that are impossible."""
    return {
        ((a, x), (b, y))
        for a, b in combinations(factors, 2)
        for x, y in product(factors[a], factors[b])
    } - {*impossible}


def cover(
    factors: Mapping[str, Sequence[str]] = FACTORS,
    impossible: Iterable[Pair] = tuple(IMPOSSIBLE),
    run: Sequence[str] = RUN,
) -> list[Row]:
    """Rows in which every possible pair occurs, found greedily: the same ones each time.

    Each setting of factors that are not in `run` costs a run to compare with, so that a row whose
    settings come up already is taken even if another one has a few more new pairs.
    """
    number = {pair: 1 << n for n, pair in enumerate(sorted(possible_pairs(factors, impossible)))}
    candidates: list[tuple[Row, int]] = []
    for values in product(*factors.values()):
        row = dict(zip(factors, values, strict=True))
        bits = [number.get(pair) for pair in pairs_of(row)]
        if None not in bits:
            candidates.append((row, sum(bit or 0 for bit in bits)))
    left, chosen, known = sum(number.values()), list[Row](), set[tuple[str, ...]]()
    while left:
        gains = [((bits & left).bit_count(), row, bits) for row, bits in candidates]
        fresh = max(gains, key=_gain, default=(0, {}, 0))
        used = [each for each in gains if settings_of(each[1], run) in known]
        gain, row, bits = max(used, key=_gain, default=fresh)
        if 2 * gain < fresh[0]:
            gain, row, bits = fresh
        if not gain:
            missing = [pair for pair, bit in number.items() if bit & left]
            raise ValueError(f"in no possible run: {missing[0]}")
        chosen.append(row)
        known.add(settings_of(row, run))
        left &= ~bits
    return chosen


def _gain(each: tuple[int, Row, int]) -> int:
    return each[0]


def settings_of(row: Row, run: Sequence[str] = RUN) -> tuple[str, ...]:
    """The values that decide the digests."""
    return tuple(value for factor, value in row.items() if factor not in run)
