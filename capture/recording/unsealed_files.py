"""Unsealed files: those that nobody writes to any more, on their way to the sealer."""

import threading
from collections import Counter
from pathlib import Path

from ranklake.capture.spool.stream_files import OpenFile


class UnsealedFiles:
    """Files that writers filled, or that were cut, each with its rows. Any thread may add to them."""

    def __init__(self) -> None:
        self._files: dict[OpenFile, int] = {}
        self._mutex = threading.RLock()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, ended: dict[Path, int]) -> None:
        """Take ended files, with their rows."""
        with self._mutex:  # `Recorder.close` does this, too, while the sealer is at work
            for path, rows in ended.items():
                file = OpenFile.of(path)
                assert file is not None
                self._files[file] = rows

    def there(self) -> list[OpenFile]:
        """Return those that are there."""
        with self._mutex:
            return [file for file in self._files if file.path.exists()]

    def forget_sealed(self) -> None:
        """Forget those that are gone."""
        with self._mutex:
            self._files = {file: rows for file, rows in self._files.items() if file.path.exists()}

    def leave(self, folder: Path) -> None:
        """Forget those in a folder, which somebody else seals."""
        with self._mutex:
            self._files = {file: rows for file, rows in self._files.items() if file.path.parent != folder}

    def give_up(self) -> Counter[str]:
        """Forget all, and return how many rows they held, by table."""
        with self._mutex:
            files, self._files = self._files, {}
        lost: Counter[str] = Counter()
        for file, rows in files.items():
            lost[file.table] += rows
        return lost

    def after_fork(self) -> None:
        """In a forked child: they are the parent's."""
        self._files, self._mutex = {}, threading.RLock()
