"""Search: what is found, in which order, and what a query cannot do."""

import json
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlboost_jax.environments.builtin.corpus import (
    BadQuery,
    Corpus,
    Document,
    NoCorpus,
    build,
)
from rlboost_jax.environments.builtin.search_tool import search_tools
from tests.patience import PATIENCE_SECONDS

DOCUMENTS = (
    Document(name="a", title="Rivers", text="The Rhine flows through Basel and Cologne."),
    Document(name="b", title="Towns", text="Basel is a town on the Rhine. Basel has a zoo."),
    Document(name="c", title="Lakes", text="Lake Constance is fed by a river."),
    Document(name="d", title="", text="naïve cafés: Zürich"),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "a file? with #%41 odd name.sqlite"
    assert build(DOCUMENTS, path) == 4
    return path


@pytest.fixture(scope="module")
def corpus(path):
    return Corpus(path)


def names(hits):
    return [hit.name for hit in hits]


def test_documents_with_the_words_are_found_the_best_first(corpus):
    assert names(corpus.search("Basel", limit=5)) == ["b", "a"]
    assert names(corpus.search("zoo Constance", limit=5)).count("b") == 1
    assert names(corpus.search("rivers", limit=5)) == ["a", "c"]  # by the stem
    assert names(corpus.search("ZURICH naive", limit=5)) == ["d"]
    assert corpus.search("elephant", limit=5) == ()


def test_no_more_than_asked_for(corpus):
    assert names(corpus.search("Basel", limit=1)) == ["b"]
    assert names(corpus.search("Basel", limit=-3)) == ["b"]  # not all, as SQLite takes it


def test_equal_ranks_stand_in_the_order_of_the_file(tmp_path):
    same = [Document(name=str(n), title="", text="word") for n in (3, 1, 2)]
    build(same, tmp_path / "c")
    assert names(Corpus(tmp_path / "c").search("word", limit=9)) == ["3", "1", "2"]


@pytest.mark.parametrize("query", ["", "   ", "?!", '"', "x" * 501])
def test_queries_that_cannot_be_asked(corpus, query):
    with pytest.raises(BadQuery):
        corpus.search(query, limit=5)


@pytest.mark.parametrize(
    "query", ['"open', "AND", "Basel AND", "NEAR(", "nosuch:word", "*", "a\0b", "-", "rank:5"]
)
def test_mistakes_in_the_language_are_for_the_policy_to_read(corpus, query):
    with pytest.raises(BadQuery):
        corpus.search(query, limit=5, raw=True)
    with_words = [w for w in ("open", "Basel") if w in query]
    if with_words:  # as words the same text is none
        corpus.search(query, limit=5)


def test_the_language(corpus):
    assert names(corpus.search("Basel NOT zoo", limit=5, raw=True)) == ["a"]
    assert names(corpus.search("title: towns", limit=5, raw=True)) == ["b"]
    assert names(corpus.search("Const*", limit=5, raw=True)) == ["c"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=80), st.booleans())
def test_no_query_is_an_exception_of_another_kind(corpus, query, raw):
    try:
        assert len(corpus.search(query, limit=3, raw=raw)) <= 3
    except BadQuery as error:
        assert str(error)


def test_a_query_that_takes_too_long_is_ended(tmp_path):
    """All documents have the word, so that the clock is looked at while they are ranked."""
    many = (Document(name=str(n), title="", text="word") for n in range(20_000))
    build(many, tmp_path / "c")
    hurried = Corpus(tmp_path / "c", seconds=1e-9)
    with pytest.raises(BadQuery, match="takes more than 1e-09 s"):
        hurried.search("word", limit=5)
    assert len(Corpus(tmp_path / "c", seconds=PATIENCE_SECONDS).search("word", limit=5)) == 5


def test_the_file_cannot_be_written(corpus):
    with corpus._opened() as file, pytest.raises(sqlite3.OperationalError, match="readonly"):
        file.execute("DELETE FROM documents")


def test_the_tools(path):
    search, read = search_tools(str(path), results=1, most_text=10)
    assert search.run({"query": "Basel zoo"}, "k") == (
        "[b] Towns: Basel is a town on the Rhine. Basel has a zoo."
    )
    assert search.run({"query": "elephant"}, "k") == "nothing was found"
    assert read.run({"document": "c"}, "k").startswith("Lake Const\n… 23 more characters")
    assert read.run({"document": "c", "start": 30}, "k") == "er."
    assert read.run({"document": "c", "start": 99}, "k") == "it has 33 characters only"
    assert "no document 'x'" in read.run({"document": "x"}, "k")
    assert search.idempotent and read.idempotent


def test_what_makes_no_corpus(tmp_path):
    path = tmp_path / "c.sqlite"
    with pytest.raises(NoCorpus, match="no document"):
        build((), path)
    with pytest.raises(NoCorpus, match="the name 'a'"):
        build((DOCUMENTS[0], DOCUMENTS[0]), path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, b"", b"text", b"SQLite format 3\0" + bytes(5000)])
def test_files_that_are_no_corpus(tmp_path, content):
    path = tmp_path / "c"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NoCorpus, match="rlboost index"):
        Corpus(path)


def test_another_database_is_none(tmp_path):
    with sqlite3.connect(tmp_path / "c") as file:
        file.execute("CREATE VIRTUAL TABLE found USING fts5(x)")
    with pytest.raises(NoCorpus, match="of this release"):
        Corpus(tmp_path / "c")


def index(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "rlboost_jax.cli.index", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def test_the_command(tmp_path):
    source, to = tmp_path / "docs.jsonl", tmp_path / "docs.sqlite"
    rows = [{"id": d.name, "head": d.title, "body": d.text} for d in DOCUMENTS]
    source.write_text("\n".join(json.dumps(row) for row in rows))
    columns = ("--text=body", "--title=head", "--name=id")
    done = index(f"--source={source}", f"--to={to}", *columns)
    assert (done.returncode, done.stdout) == (0, f"4 documents in {to}\n"), done.stderr
    assert names(Corpus(to).search("Basel", limit=5)) == ["b", "a"]

    source.write_text(json.dumps({"body": ""}))
    done = index(f"--source={source}", f"--to={to}", *columns)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert names(Corpus(to).search("Basel", limit=5)) == ["b", "a"], "the corpus of before is gone"
