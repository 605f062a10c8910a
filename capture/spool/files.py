"""Files of a local spool: written atomically, and opened safely although other users may write to the spool.

Another user with write access to a local spool may put links, FIFOs and sockets there in place of folders and files. So
a stream is used only if its folder and those of its attempt and run are real folders of the same user. Only regular
files of that user are read in it. Files are opened without following links and without blocking.

A process handles the streams of its own user. An agent that runs as root handles the streams of all users, each with
that user's rights. So a user gains no rights by putting files into a folder or swapping them while root reads it.
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
    """Write a file that is complete and synced when it appears under its name. Raises `OSError`, leaving no file."""
    temporary = path.with_name(f".{path.name[:64]}{TEMPORARY}")
    try:
        temporary.unlink(missing_ok=True)  # left by a killed process; possibly a link, which must not be followed
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
    """Sync a folder's entries to disk. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_open_file(fd: int) -> None:
    """Sync an open file's bytes to disk. A file that another thread has closed meanwhile is skipped.

    Owners set the descriptor to -1 before they close it; from then on, `sync_file` syncs the file by its path. Raises
    `OSError`.
    """
    if fd < 0:
        return
    try:
        os.fdatasync(fd)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise


def sync_file(path: Path) -> None:
    """Sync a file that is no longer written to disk. A deleted file is skipped. Raises `OSError`."""
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
    """Return the id of the user who owns a stream's folders; None if they are not real folders of the same user."""
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
    """Whether a stream belongs to the user of this process."""
    return owner_of(stream) == os.geteuid()


def may_serve(stream: Path) -> bool:
    """Whether an agent may handle a stream: it belongs to the agent's user, or the agent runs as root."""
    owner = owner_of(stream)
    return owner is not None and os.geteuid() in {owner, 0}


def regular_files(folder: Path) -> list[Path]:
    """Return the regular files in a folder that its owner owns, too. Raises `OSError`."""
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
    """Open a regular file and return its descriptor, without following a link and without blocking on a FIFO.

    Raises `OSError`, also if the path is not a regular file.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file. Raises `OSError`, as `open_regular` does."""
    with open(open_regular(path), "rb") as file:
        return file.read()


@contextlib.contextmanager
def with_rights_of(stream: Path) -> Iterator[None]:
    """Run the block with the rights of a stream's owner instead of root's.

    Only root can trace or signal a process that was started by root, also within the block. The change affects all
    threads of the process, so no other thread may access files meanwhile.

    Raises `OSError` if the stream's folders do not belong to the same user, or rights cannot be changed, and
    `FileNotFoundError` if the stream's process has deleted the stream meanwhile.
    """
    owner = owner_of(stream)
    if owner is None:
        stream.lstat()  # raises FileNotFoundError for a stream that was just deleted, which callers ignore
        raise OSError(errno.EPERM, "not folders of a single user", str(stream))
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
