"""The day on which the tests began: the only clock that a module of the tests may read as it is imported.

A test may run after midnight, and midnight may come while it runs: by then it is yesterday. What hangs on the day that
a test runs on takes that from what the product wrote, or gives it a day of its own.
"""

from datetime import UTC, datetime

TODAY = datetime.now(UTC).date()
