"""Deaths within a process, before or after whatever it writes."""

from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.table import TableAlterer

from ranklake.lake.migrations import rewriting
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.store.store import Store


class KilledError(BaseException):
    """Stands for SIGKILL: nothing in between may catch it."""


class Killer:
    """Kills whoever writes, before or after what it writes for the n-th time."""

    def __init__(self, monkeypatch, *others):
        self.moments, self.last = 0, 0
        changes = ((TableAlterer, name) for name in ("add_columns", "set_column_metadata", "set_table_properties"))
        commits = ((DeltaTable, "create_write_transaction"), *changes)
        for owner, name in ((Store, "put_if_absent"), (rewriting, "write_partition"), *commits, *others):
            monkeypatch.setattr(owner, name, self.mortal(getattr(owner, name)))

    def mortal(self, work):
        """Return a function that may die before or after its work."""

        def carried_out(*args, **options):
            self.tick()
            done = work(*args, **options)
            self.tick()
            return done

        return carried_out

    def tick(self):
        """Let a moment pass."""
        self.moments += 1
        if self.moments == self.last:
            raise KilledError

    @contextmanager
    def spared(self):
        """Let nobody die meanwhile."""
        self.last, last = 0, self.last
        yield
        self.last = last

    def survives(self, work):
        """Try it once more, and die a moment later than the time before; return whether it came to its end."""
        self.moments, self.last = 0, self.last + 1
        try:
            work()
        except KilledError:
            return False
        except MigrationError as error:
            return "to undo" in str(error)  # whoever came first finished it
        return True
