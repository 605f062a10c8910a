"""Room ``retention``; see its README.md."""

if __name__ != "ranklake.retention":  # a bare import would make a second copy of every class in the room
    raise ImportError("import this room as ranklake.retention")
