"""Importers: convert files of other tools to segments, which ingest reads like recorded ones.

    files ─▶ source.py: open, unpack, split into lines ─▶ an importer: kineto, mlperf, sacct, table, … ─▶ rows
                                                                                                          │
    <spool>/segments ◀── shipping.py: packs ◀── imported_rows.py: sealed segments ◀── imported_run.py ◀───┘

Begin with `imports.import_files`. Each importer declares a `formats.Format`.
"""
