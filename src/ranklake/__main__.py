"""``python -m ranklake``."""

import ctypes

from ranklake.cli import INTERRUPTED, main

try:
    main()
except SystemExit as end:
    # After a Ctrl-C during `exec` of source text, as in dataclasses, ``python -m`` ends by the signal although it was
    # caught. Py_Exit ends like a script: it runs exit handlers and returns the exit code.
    if end.code == INTERRUPTED:
        ctypes.pythonapi.Py_Exit(INTERRUPTED)
    raise
