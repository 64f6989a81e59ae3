"""Make a corpus that the tool `search` looks things up in, of a file of documents.

    rlboost index --source=wiki.jsonl --text=text --title=title --to=wiki.sqlite

The source may be whatever data.source may be: JSON, CSV, Parquet, ArrayRecord, a folder or pattern
of these, a name on the hub. The corpus is one file; copy it to wherever environments run.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.data.row import BrokenRow, Rows
from rlboost_jax.environments.builtin.corpus import NoCorpus, build, documents_of
from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import ConfigError


def main() -> None:
    options = command_parser.parser("index", __doc__)
    options.add_argument("--source", required=True, help="the documents")
    options.add_argument("--to", type=Path, required=True, help="the file to write")
    options.add_argument("--text", default="text", help="column of what is looked through")
    options.add_argument("--title", default="", help="column of the title; none without it")
    options.add_argument("--name", default="", help="column of a name; the row's number without it")
    options.add_argument("--split", default="", help="of a set on the hub")
    given = options.parse_args()
    columns = [column for column in (given.text, given.title, given.name) if column]
    try:
        rows = open_rows(given.source, "auto", subset="", split=given.split, columns=columns)
        documents = documents_of(_each(rows), text=given.text, title=given.title, name=given.name)
        count = build(documents, given.to)
    except (ConfigError, NoCorpus, BrokenRow) as error:
        exits.leave(f"error: {str(error).replace('data.source', '--source')}", exits.MISTAKE)
    print(f"{count:,} documents in {given.to}")


def _each(rows: Rows) -> Iterator[Mapping[str, Any]]:
    for index in range(len(rows)):
        try:
            yield rows[index]
        except BrokenRow as error:
            raise BrokenRow(f"{rows.place(index)}: {error}") from None


if __name__ == "__main__":
    main()
