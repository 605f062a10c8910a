"""Room ``lake``; see its README.md."""

if __name__ != "ranklake.lake":  # a bare import would make a second copy of every class in the room
    raise ImportError("import this room as ranklake.lake")


def __getattr__(name: str) -> object:
    """Find ``ranklake.lake.sql`` when it is first asked for: capture imports this room, which must stay light."""
    if name == "sql":
        from ranklake.lake.ask.python import sql

        return sql
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
