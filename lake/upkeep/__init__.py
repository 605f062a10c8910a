"""Keeping a lake in shape: few files (`merge`), short logs (`logs`), nothing left behind (`purge`); all of it by `run`.

Nothing here changes what the tables hold.
"""
