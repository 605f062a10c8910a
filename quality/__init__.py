"""Room ``quality``; see its README.md."""

if __name__ != "ranklake.quality":  # a bare import would make a second copy of every class in the room
    raise ImportError("import this room as ranklake.quality")
