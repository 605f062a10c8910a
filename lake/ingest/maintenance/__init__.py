"""Keeping a lake in shape: few files, short logs, nothing left behind, nothing rotten; all of it by `run`.

`compaction` makes plans of merges of small files (`merges`), `log` shortens logs, `vacuum` deletes what nobody names,
`scrub` reads every file. Nothing here changes what the tables hold.
"""
