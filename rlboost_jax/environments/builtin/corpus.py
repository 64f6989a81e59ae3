"""Full-text index of documents in a SQLite file (FTS5): built once, then only read.

Results follow from the file and the query alone: by rank (bm25), and where that is equal by the
order in which documents were added. No query takes longer than `SECONDS` or gives more than it was
asked for, and none can change the file.
"""

import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rlboost_jax.platform import durable
from rlboost_jax.platform.bounded_files import Unreadable, explained, open_regular

FORMAT: Final = 1  # in the file as SQLite's user_version
APPLICATION: Final = 0x524C4358  # "RLCX", in the file as its application_id
SECONDS: Final = 5.0  # of a query
MOST_QUERY: Final = 500  # characters
MOST_RESULTS: Final = 50
EXCERPT_WORDS: Final = 40  # of a result; FTS5 allows 64
_OPERATIONS: Final = 10_000  # of SQLite's machine between two looks at the clock
_WORD: Final = re.compile(r"\w+")
_SCHEMA: Final = """
CREATE TABLE documents (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, title TEXT NOT NULL,
    text TEXT NOT NULL);
CREATE VIRTUAL TABLE found USING fts5 (title, text, content='documents', content_rowid='id',
    tokenize='porter unicode61');
"""


class NoCorpus(ValueError):
    """A file that is no corpus, or documents that make none; the message says why."""


class BadQuery(ValueError):
    """A query that cannot be asked; the policy reads the message."""


@dataclass(frozen=True, kw_only=True)
class Document:
    name: str  # its own in the corpus
    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Hit:
    name: str
    title: str
    excerpt: str  # around the words that were looked for


def build(documents: Iterable[Document], path: Path) -> int:
    """Write a corpus; returns its number of documents.

    An existing file stays until the new is complete.

    Raises:
        NoCorpus: two documents have one name, there is none, or this SQLite has no FTS5.
    """
    half = path.with_name(path.name + durable.PART)
    half.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(half, isolation_level=None)) as file:
            count = _fill(file, documents)
        with open(half, "rb") as written:
            os.fsync(written.fileno())
        durable.replace(half, path)
    finally:
        half.unlink(missing_ok=True)
    return count


def _fill(file: sqlite3.Connection, documents: Iterable[Document]) -> int:
    file.execute("PRAGMA journal_mode = OFF")  # until it is whole nobody has it
    file.execute("PRAGMA synchronous = OFF")
    file.execute(f"PRAGMA application_id = {APPLICATION}")
    file.execute(f"PRAGMA user_version = {FORMAT}")
    try:
        file.executescript(_SCHEMA)
    except sqlite3.OperationalError as error:
        raise NoCorpus(f"this Python's SQLite has no full-text search: {error}") from None
    file.execute("BEGIN")
    count = 0
    for document in documents:
        values = (document.name, document.title, document.text)
        try:
            file.execute("INSERT INTO documents (name, title, text) VALUES (?, ?, ?)", values)
        except sqlite3.IntegrityError:
            raise NoCorpus(f"two documents have the name {document.name!r}") from None
        count += 1
    if not count:
        raise NoCorpus("there is no document")
    file.execute("INSERT INTO found (found) VALUES ('rebuild')")
    file.execute("INSERT INTO found (found) VALUES ('optimize')")
    file.execute("COMMIT")
    return count


class Corpus:
    """Reader of a file that `build` wrote. Any thread may query; each query opens the file anew.

    Raises:
        NoCorpus: it is none.
    """

    def __init__(self, path: str | os.PathLike[str], *, seconds: float = SECONDS) -> None:
        self._path, self._seconds = Path(path).expanduser(), seconds
        try:
            os.close(open_regular(self._path, "a corpus"))  # SQLite would wait for a FIFO's writer
        except (OSError, Unreadable) as error:
            raise NoCorpus(
                f"{explained(error)}; `rlboost index` makes a corpus of a file of documents"
            ) from None
        try:
            with self._opened() as file:
                (application,) = file.execute("PRAGMA application_id").fetchone()
                (version,) = file.execute("PRAGMA user_version").fetchone()
                file.execute("SELECT rowid FROM found LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise NoCorpus(
                f"{path} is no corpus: {error}; `rlboost index` makes one of a file of documents"
            ) from None
        if (application, version) != (APPLICATION, FORMAT):
            raise NoCorpus(
                f"{path} is no corpus of this release; `rlboost index` makes one of a file of "
                "documents"
            )

    def search(self, query: str, *, limit: int, raw: bool = False) -> tuple[Hit, ...]:
        """Search for documents; the best come first.

        Args:
            query: words; a document has at least one of them. With `raw` FTS5's own language:
                AND, OR, NOT, NEAR, "phrases", prefixes*.
            limit: at most so many, 1 to MOST_RESULTS.

        Raises:
            BadQuery: it is empty, too long, takes too long, or is not valid.
        """
        asked = query.strip() if raw else " OR ".join(f'"{w}"' for w in _WORD.findall(query))
        if not asked:
            raise BadQuery("the query has no word")
        if len(query) > MOST_QUERY:
            raise BadQuery(f"the query has {len(query)} characters; {MOST_QUERY} are possible")
        if "\0" in asked:
            raise BadQuery("the query has a null character")
        statement = (
            "SELECT name, documents.title, snippet(found, 1, '', '', '…', ?) FROM found "
            "JOIN documents ON documents.id = found.rowid WHERE found MATCH ? "
            "ORDER BY rank, found.rowid LIMIT ?"
        )
        values = (EXCERPT_WORDS, asked, max(1, min(limit, MOST_RESULTS)))
        try:
            with self._opened() as file:
                rows = file.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            if str(error) == "interrupted":
                raise BadQuery(f"the query takes more than {self._seconds:g} s") from None
            if not _is_of_query(error):
                raise
            raise BadQuery(f"no such query: {error}") from None
        return tuple(Hit(name=n, title=t, excerpt=" ".join(e.split())) for n, t, e in rows)

    def document(self, name: str) -> Document | None:
        """Document of that name; None if there is none."""
        statement = "SELECT name, title, text FROM documents WHERE name = ?"
        with self._opened() as file:
            row = file.execute(statement, (name.replace("\0", ""),)).fetchone()
        return None if row is None else Document(name=row[0], title=row[1], text=row[2])

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        place = f"file:{quote(str(self._path.absolute()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(place, uri=True)) as file:
            end = time.monotonic() + self._seconds
            file.set_progress_handler(lambda: time.monotonic() > end, _OPERATIONS)
            yield file


def documents_of(
    rows: Iterable[Mapping[str, Any]], *, text: str, title: str = "", name: str = ""
) -> Iterator[Document]:
    """Build documents from rows of data.

    Args:
        text, title, name: columns. Without a title it is empty; without a name it is the number
            of the row, from 0.

    Raises:
        NoCorpus: a row has no text.
    """
    for number, row in enumerate(rows):
        if not isinstance(row.get(text), str) or not row[text].strip():
            raise NoCorpus(f"row {number} has no text in column {text!r}")
        yield Document(
            name=str(row[name]) if name else str(number),
            title=str(row.get(title) or "") if title else "",
            text=row[text],
        )


def _is_of_query(error: sqlite3.OperationalError) -> bool:
    """Whether the error is of the query rather than of the file or the disk."""
    words = ("fts5:", "no such column", "unterminated string", "unknown special query")
    return any(word in str(error) for word in words)
