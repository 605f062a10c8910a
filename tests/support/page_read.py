"""Reading a report page: its elements, the SQL that it shows, and the numbers that should be what that gives."""

import json
from html.parser import HTMLParser

from ranklake.lake.query.sql import query
from ranklake.printable import printable_lines


class Read(HTMLParser):
    """What a page holds: elements with their attributes, SQL by source, figures, and cells by row."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.sql, self.figures, self.rows, self.keys = [], {}, [], {}, {}
        self._source = self._table = self._row = self._column = self._specs = None
        self.specs, self.specs_of = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):  # noqa: D102 - HTMLParser's
        given = dict(attributes)
        self.elements.append((tag, given))
        if tag == "code" and "data-source" in given:
            self._source = given["data-source"]
            self.sql[self._source] = ""
        elif tag == "script" and given.get("type") == "application/json":
            self._specs = ""
            self.specs_of.append(given.get("data-source", ""))
        elif tag == "table":
            self._table = given.get("data-source")
            if self._table:  # of facts that SQL gives
                self.keys[self._table] = given["data-key"].split()
                self.rows[self._table] = []
        elif tag == "tr" and self._table:
            self._row = {}
        if "data-absent" in given:
            self._row = None
        if "data-column" in given and tag != "data":
            self._column = given["data-column"]
        if tag == "data" and "data-source" in given:
            self.figures.append((given["data-source"], given["data-column"], given["value"]))
        elif tag == "data" and self._row is not None:
            self._row[self._column] = given["value"]

    def handle_endtag(self, tag):  # noqa: D102
        if tag == "code":
            self._source = None
        elif tag == "script" and self._specs is not None:
            self.specs.append(json.loads(self._specs))
            self._specs = None
        elif tag == "table":
            self._table = None
        elif tag == "tr" and self._row:
            self.rows[self._table].append(self._row)
            self._row = None

    def handle_data(self, data):  # noqa: D102
        if self._source:
            self.sql[self._source] += data
        if self._specs is not None:
            self._specs += data


def shown(value):
    """Return a value as a page writes it down for machines."""
    return "" if value is None else printable_lines(str(value))


def compared(lake, text):
    """Compare each figure and cell of a page with what the SQL beside it gives; return how many there were.

    Beside each SQL stands which versions of tables it read.
    """
    page = Read(text)
    assert text.count("<p>Read: ") + text.count(" Read: ") >= len(page.sql)
    answers = {name: query(lake, sql).to_pylist() for name, sql in page.sql.items()}
    assert answers.keys() >= {*page.rows}
    for source, column, value in page.figures:
        row = answers[source][0] if answers[source] else {column: None}
        assert value == shown(row[column]), (source, column)
    count = len(page.figures)
    for source, rows in page.rows.items():
        keys = page.keys[source]
        by_key = {tuple(shown(row[name]) for name in keys): row for row in answers[source]}
        assert len(by_key) == len(rows), source
        for row in rows:
            answer = by_key[tuple(row.get(name, "") for name in keys)]
            assert row == {name: shown(answer[name]) for name in row}
            count += len(row)
    return count
