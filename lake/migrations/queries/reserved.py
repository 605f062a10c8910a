"""Words that an engine takes for something else than a column, unless they are quoted."""

from typing import Final

_WORDS: Final = """
all alter analyse analyze and anti any array as asc asof asymmetric at authorization between binary both by case cast
check cluster collate collation column columns concurrently constraint create cross cube current_catalog current_date
current_path current_role current_schema current_time current_timestamp current_user deallocate default deferrable
delete desc describe distinct distribute do drop else end escape except exclude execute exists explain extract false
fetch for force foreign freeze from full generated glob grant group grouping having if ilike in initially inner insert
install intersect interval into is isnull join json_array json_exists json_object json_query json_table json_value
lambda lateral leading left like limit listagg localtime localtimestamp map match_recognize minus natural normalize
not notnull null offset on only or order outer overlaps pivot pivot_longer pivot_wider placing positional prepare
primary qualify recursive references regexp returning revoke right rlike rollback rollup select semi session_user show
similar skip some sort struct summarize symmetric system_user table tablesample then to top trailing trim true
try_cast tuple uescape union unique unnest unpack unpivot user using values variadic verbose view when where window
with xor
"""
"""Of PostgreSQL, DuckDB and Trino as their manuals have them, and what DataFusion or sqlglot do not take for a name."""

_RESERVED: Final = frozenset(_WORDS.split())


def quoted(name: str, quote: str) -> str:
    """Return a name as SQL, in quotes where it has to be; `quote` is the dialect's."""
    return f"{quote}{name}{quote}" if name in _RESERVED else name
