"""The Pareto front: no other choice is as good in both figures and better in one."""

from collections.abc import Sequence

Point = tuple[float, float]  # seconds, dollars: less is better


def beats(one: Point, other: Point) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one != other


class Front:
    """Points that no other point so far beats."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def add(self, point: Point) -> None:
        if not self.beats(point):
            self.points = [each for each in self.points if not beats(point, each)] + [point]

    def beats(self, point: Point) -> bool:
        """Whether a point of the front beats this one."""
        return any(beats(each, point) for each in self.points)


def front(points: Sequence[Point]) -> list[int]:
    """Indices of the points that no other beats, the fastest first."""
    order = sorted(range(len(points)), key=lambda i: (points[i], i))
    found: list[int] = []
    for i in order:  # a faster one, or one as fast and no dearer, has come before
        if all(not beats(points[j], points[i]) for j in found[-1:]):
            found.append(i)
    return found
