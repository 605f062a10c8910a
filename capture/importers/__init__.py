"""Importers: telemetry that other tools wrote becomes ordinary segments, so that ingest treats it like our own.

    files ─▶ source.py: opened, unpacked, line by line ─▶ an importer: kineto, mlperf, sacct, table, … ─▶ rows
                                                                                                          │
    <spool>/segments ◀── shipping.py: packs ◀── imported_rows.py: the real sealer ◀── imported_run.py ◀───┘

`imports.import_files` is the entry; `formats.Format` is what an importer declares.
"""
