"""Importers: telemetry that other tools wrote becomes ordinary segments, so that ingest treats it like our own.

    files ─▶ source.py: opened, unpacked, line by line ─▶ a reader (formats.py: table, mlperf, sacct, …) ─▶ drafts
                                                                                                          │
    <spool>/segments ◀── shipping.py: packs ◀── recording.py: the real sealer, an incarnation made from the content

`imports.import_files` is the entry; `formats.FORMATS` says which formats there are.
"""
