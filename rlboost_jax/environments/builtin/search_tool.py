"""Search in a corpus of one's own: a tool that finds documents, and one that reads them."""

from typing import Final

from rlboost_jax.environments.builtin.corpus import Corpus
from rlboost_jax.environments.protocol import Tool
from rlboost_jax.environments.tools import tool

RESULTS: Final = 5
MOST_TEXT: Final = 2000  # characters of a document that are given at once


def search_tools(
    corpus: str, *, results: int = RESULTS, most_text: int = MOST_TEXT, raw: bool = False
) -> tuple[Tool, Tool]:
    """Build the tools `search(query)` and `read(document, start)`.

    Args:
        corpus: a file that `rlboost index` made.
        results: of a search, at most.
        most_text: characters of a document that are given at once.
        raw: queries are in FTS5's own language, and mistakes in it are the policy's.

    Raises:
        NoCorpus: the file is none.
    """
    opened = Corpus(corpus)

    def search(query: str) -> str:
        """Find documents. Gives their names, titles and excerpts, the best first."""
        hits = opened.search(query, limit=results, raw=raw)
        return "\n".join(_line(h.name, h.title, h.excerpt) for h in hits) or "nothing was found"

    def read(document: str, start: int = 0) -> str:
        """Read a document by its name, from a character on."""
        found = opened.document(document)
        if found is None:
            return f"there is no document {document[:60]!r}; search gives their names"
        start = max(0, start)
        end = start + most_text
        left = len(found.text) - end
        more = f"\n… {left} more characters; go on with start = {end}" if left > 0 else ""
        return found.text[start:end] + more or f"it has {len(found.text)} characters only"

    return tool(search, idempotent=True), tool(read, idempotent=True)


def _line(name: str, title: str, excerpt: str) -> str:
    return f"[{name}] {title}: {excerpt}" if title else f"[{name}] {excerpt}"
