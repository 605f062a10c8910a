"""Files of a local spool: written whole or not at all, and opened so that nobody's links and pipes do harm.

Whoever may write into a local spool may leave links, FIFOs and sockets there in place of folders and files, under any
name. So a stream counts only where its folder, its attempt's and its run's are folders, not links, and one user's; of
what lies in it only regular files of that user count; and files are opened without following links, without waiting.

A process touches the streams of its own user. An agent that runs as root serves those of all users, each with that
user's rights: so a user gains nothing by what he puts into his own folder, or swaps while root is looking.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TEMPORARY: Final = ".tmp"


def write_whole(path: Path, raw: bytes) -> None:
    """Write a file that is whole and on the disk when it appears under its name. Raises `OSError`, leaving none."""
    temporary = path.with_name(f".{path.name[:64]}{TEMPORARY}")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process; whatever it is, it is not written through
        with temporary.open("xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_open_file(fd: int) -> None:
    """Bring an open file's bytes to the disk itself; one that another thread closed meanwhile is left alone.

    Its owner sets the descriptor to -1 before closing it, and its bytes go by its path from then on (`sync_file`).
    Raises `OSError`.
    """
    if fd < 0:
        return
    try:
        os.fdatasync(fd)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise


def sync_file(path: Path) -> None:
    """Bring a file that nobody writes to any more to the disk; one that is gone needs it no more. Raises `OSError`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def owner_of(stream: Path) -> int | None:
    """Return the user that a stream's folders belong to; None where they are not folders of one user."""
    owners = set()
    for folder in (stream, stream.parent, stream.parent.parent):
        try:
            facts = folder.lstat()
        except OSError:
            return None
        if not stat.S_ISDIR(facts.st_mode):
            return None
        owners.add(facts.st_uid)
    return owners.pop() if len(owners) == 1 else None


def is_mine(stream: Path) -> bool:
    """Whether a stream is this process's user's."""
    return owner_of(stream) == os.geteuid()


def may_serve(stream: Path) -> bool:
    """Whether an agent may serve a stream: its own user's, and as root anybody's."""
    owner = owner_of(stream)
    return owner is not None and os.geteuid() in {owner, 0}


def regular_files(folder: Path) -> list[Path]:
    """Return the regular files in a folder that belong to the folder's owner. Raises `OSError`."""
    owner = folder.lstat().st_uid
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode) and facts.st_uid == owner:
                    files.append(folder / entry.name)
    return files


def open_regular(path: Path, flags: int = _READ) -> int:
    """Open a regular file and return its descriptor; without following a link, or waiting for a FIFO's other end.

    Raises `OSError`, also for what is no regular file.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def read_regular(path: Path) -> bytes:
    """Return what a regular file holds. Raises `OSError`, as `open_regular` does."""
    with open(open_regular(path), "rb") as file:
        return file.read()


@contextlib.contextmanager
def with_rights_of(stream: Path) -> Iterator[None]:
    """Act with the rights of a stream's owner for the block: those of root are given up.

    The kernel lets nobody but root look into a process that was root's, or signal it, whatever it acts as. All threads
    of the process are affected: none but this one should be touching files.

    Raises `OSError` where the stream's folders are not of one user, or rights cannot be changed; `FileNotFoundError`
    where the stream is gone, since its process has closed it meanwhile.
    """
    owner = owner_of(stream)
    if owner is None:
        stream.lstat()  # what a process removes in passing is no trouble, and must not be reported as one
        raise OSError(errno.EPERM, "folders of more than one user, or none", str(stream))
    if owner == os.geteuid():
        yield
        return
    group = stream.lstat().st_gid
    groups, before = os.getgroups(), os.getegid()
    try:
        os.setgroups([group])
        os.setegid(group)
        os.seteuid(owner)
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(before)
        os.setgroups(groups)
