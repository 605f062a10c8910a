"""DuckDB's statement ``PIVOT table ON … USING … GROUP BY …``, and what would keep it from giving what it gave."""

from collections.abc import Iterator, Mapping
from typing import Any

from sqlglot import exp

from ranklake.lake.migrations.queries.findings import Finding
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.references import Reading
from ranklake.lake.migrations.queries.trees import PIVOT


def pivoted(scope: Any, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401 - likewise
    """Yield why a PIVOT would give columns of other names, or other groups."""
    select = scope.expression
    count = select.args.get(PIVOT)
    if count is None:
        return
    items = [item.this for item in select.expressions]
    group = select.args.get("group")
    named = {column.name.lower() for column in select.find_all(exp.Column)}
    if group is None:
        for name, version in reading.versions.items():
            left = tables[name].otherwise(version).keys() - named
            if left or tables[name].added(version):
                what = min(left, default="") or min(tables[name].added(version))
                yield Finding(0, f"PIVOT groups by all that is left, {what} among it, which is another column now")
                return
    unnamed = [item for item in items[count:] if not isinstance(item, exp.Alias)]
    giving = [
        *items[:count],
        *(group.expressions if group is not None else ()),
        *(unnamed if len(items) - count > 1 else ()),
    ]
    for column in (column for item in giving for column in item.find_all(exp.Column)):
        meaning = reading.meaning_of(column, tables)
        is_value = any(column in item.find_all(exp.Column) for item in items[:count])
        if meaning.plain != column.name.lower() and not (is_value and meaning.plain is not None):
            place = column.this.meta.get("start", 0)
            yield Finding(place, f"PIVOT calls a column by {column.name}, which has another name now")
