"""Counts that are written down as they were at that moment."""

from rlboost_jax.manager.accounts import Books

COUNTS = {name: number for number, name in enumerate(Books.__struct_fields__, 1)}


def test_a_copy_has_all_counts_and_goes_its_own_way() -> None:
    books = Books(**COUNTS)
    copy = books.copy()
    assert copy == books and copy.values() == tuple(range(1, len(COUNTS) + 1))
    books.merge(books)
    assert copy == Books(**COUNTS) != books
