"""``python -m ranklake``."""

import ctypes

from ranklake.cli import INTERRUPTED, main

try:
    main()
except SystemExit as end:
    # Where Ctrl-C once passed through `exec` of a text, as dataclasses are made by, ``python -m`` ends by the signal
    # although it was caught. This ends like a script: it runs exit handlers and returns the code.
    if end.code == INTERRUPTED:
        ctypes.pythonapi.Py_Exit(INTERRUPTED)
    raise
