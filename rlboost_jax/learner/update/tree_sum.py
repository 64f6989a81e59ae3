"""A sum whose bits do not depend on the order in which its terms arrive.

Floating-point addition is not associative, so the order of additions is fixed by the
terms' index: neighbours (0, 1), (2, 3), … are added, then neighbours of those, up to the
root. Two neighbours are added as soon as both are there. Terms that arrive in order keep
at most one partial sum per level, like the digits of a binary counter.
"""

from collections.abc import Callable
from typing import Any


class TreeSum:
    """Pairwise tree sum of `num_parts` pytrees of gradients.

    The parts are consumed: an added tree must not be used again.
    """

    def __init__(self, num_parts: int, combine: Callable[[Any, Any], Any]) -> None:
        """Start a sum without parts.

        Args:
            combine: (left, right) → their sum, left being the lower indices.
        """
        if num_parts < 1:
            raise ValueError(f"a sum of {num_parts} parts; at least 1 is needed")
        self.num_parts = num_parts
        self._combine = combine
        self._added: set[int] = set()
        self._partial: dict[tuple[int, int], Any] = {}  # (level, index in level) → sum

    def add(self, index: int, part: Any) -> None:
        """Add the part of `index` in [0, num_parts); each index once.

        Raises:
            ValueError: the index is out of range or was added before.
        """
        if not 0 <= index < self.num_parts or index in self._added:
            state = "was added before" if index in self._added else "does not exist"
            raise ValueError(f"part {index} of {self.num_parts} {state}")
        self._added.add(index)
        level, size = 0, self.num_parts
        while size > 1:
            sibling = index ^ 1
            if sibling < size:  # else the last of an odd level: it moves up as it is
                other = self._partial.pop((level, sibling), None)
                if other is None:
                    break
                part = self._combine(part, other) if index < sibling else self._combine(other, part)
            level, index, size = level + 1, index // 2, (size + 1) // 2
        self._partial[level, index] = part

    def total(self) -> Any:
        """Return the sum over all parts.

        Raises:
            ValueError: parts are missing.
        """
        if len(self._added) < self.num_parts:
            missing = sorted(set(range(self.num_parts)) - self._added)
            raise ValueError(f"parts {missing} of {self.num_parts} are missing from the sum")
        (root,) = self._partial.values()
        return root
