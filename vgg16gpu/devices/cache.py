"""The cache of compiled kernels, shared by all devices.

An entry is one file `<key>-<digest><suffix>`: the key says what it was compiled from, the digest what the file must
contain. Both lie in the name, so an entry appears whole, by one rename, and a damaged one betrays itself. Loading an
entry runs its code; hence the folder must be ours alone.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vgg16gpu.errors import KernelError

_PRIVATE = 0o700
_KEY_DIGITS = 32  # of SHA-256, in a file name
_TEMPORARY = ".building-"
_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process: struct flock of 64-bit Linux

_REFUSED = (
    "the kernel cache %s %s: kernels are compiled anew in every process (set VGG16GPU_CACHE to a folder of your own)"
)

_log = logging.getLogger(__name__)
_fallbacks: dict[Path, Path] = {}  # refused folder -> what stands in for it in this process
_fallback_lock = threading.Lock()


class CacheEntry(NamedTuple):
    """One compiled file in the cache."""

    path: Path
    nbytes: int
    modified: float  # seconds since the epoch


def cache_dir() -> Path:
    """The folder of the cache, which may not exist yet: VGG16GPU_CACHE, else vgg16gpu in XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("VGG16GPU_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    if home and Path(home).is_absolute():  # the XDG rule: a relative value is to be ignored
        return Path(home) / "vgg16gpu"
    try:
        return Path.home() / ".cache" / "vgg16gpu"
    except RuntimeError:  # no HOME and no passwd entry, as in some containers
        return Path(tempfile.gettempdir()) / f"vgg16gpu-{os.getuid()}"


def refusal(folder: Path) -> str | None:
    """Why `folder` (created if absent) cannot be trusted or used, or None if it can."""
    try:
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        return f"cannot be created: {error.strerror or error}"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to user {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o}; chmod 700 it)"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "is not writable"
    return None


class KernelCache:
    """The compiled kernels of one kind of device ("cpu", "cuda"). Safe for threads and parallel processes."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def folder(self) -> Path:
        """Where the entries of this kind belong; it may not exist yet."""
        return cache_dir() / self.kind

    def fetch(
        self,
        key_parts: Sequence[bytes | str],
        suffix: str,
        build: Callable[[Path], None],
        check: Callable[[bytes], bool] | None = None,
    ) -> Path:
        """The file compiled from `key_parts` (source, headers, flags, compiler version, architecture or CPU model).

        A missing entry is made: `build(path)` must write the file `path`, whose name ends in `suffix`. An entry whose
        content does not match its digest, or that `check` refuses, is rebuilt. Raises whatever `build` raises, and
        KernelError if the result cannot be stored.
        """
        folder, key = self._usable_folder(), self._key(key_parts, suffix)
        if found := _find(folder, key, suffix, check):
            return found[0]
        with _only_builder(folder, key):
            found = _find(folder, key, suffix, check)  # another process may have built it meanwhile
            return found[0] if found else _store(folder, key, suffix, build)

    def find(
        self, key_parts: Sequence[bytes | str], suffix: str, check: Callable[[bytes], bool] | None = None
    ) -> tuple[Path, bytes] | None:
        """The entry of these parts and its content, if there is a sound one."""
        return _find(self._usable_folder(), self._key(key_parts, suffix), suffix, check)

    def _key(self, key_parts: Sequence[bytes | str], suffix: str) -> str:
        return _digest_of_parts([self.kind, suffix, *key_parts])

    def entries(self) -> tuple[CacheEntry, ...]:
        """What the cache holds, by name. Empty if there is no cache."""
        found = []
        for path in sorted(_files(self.folder)):
            if path.name.startswith(_TEMPORARY):
                continue
            with contextlib.suppress(OSError):  # another process may have removed it since
                status = path.stat()
                found.append(CacheEntry(path, status.st_size, status.st_mtime))
        return tuple(found)

    def size(self) -> int:
        """Bytes of all entries together."""
        return sum(entry.nbytes for entry in self.entries())

    def clear(self) -> int:
        """Remove every entry and every leftover of an interrupted build; the number of entries removed."""
        removed = 0
        for path in _files(self.folder):
            with contextlib.suppress(FileNotFoundError):
                try:
                    path.unlink()
                except OSError as error:
                    raise KernelError(f"cannot remove {path} from the kernel cache: {error.strerror}") from error
                removed += not path.name.startswith(_TEMPORARY)
        return removed

    def _usable_folder(self) -> Path:
        root = cache_dir()
        with _fallback_lock:
            if root in _fallbacks:
                root = _fallbacks[root]
            elif reason := refusal(root) or refusal(root / self.kind):
                _fallbacks[root] = _private_folder(root)
                _log.warning(_REFUSED, root, reason)
                root = _fallbacks[root]
        folder = root / self.kind
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        return folder


def _private_folder(refused: Path) -> Path:
    """A folder for this process alone, removed when it ends."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="vgg16gpu-"))
    except OSError as error:
        raise KernelError(f"no folder for compiled kernels: neither {refused} nor a temporary one: {error}") from error
    atexit.register(_remove_if_process, os.getpid(), folder)
    return folder


def _remove_if_process(pid: int, folder: Path) -> None:
    if os.getpid() == pid:  # a forked child must not remove its parent's folder
        shutil.rmtree(folder, ignore_errors=True)


def _digest_of_parts(parts: Sequence[bytes | str]) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))  # so that ("ab", "c") and ("a", "bc") differ
        total.update(data)
    return total.hexdigest()[:_KEY_DIGITS]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_KEY_DIGITS]


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file()]
    except OSError:
        return []


def _named(folder: Path, key: str, suffix: str) -> list[Path]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - Path.glob takes ten times as long, for each kernel of a start
    except OSError:
        return []
    return [folder / name for name in sorted(names) if name.startswith(f"{key}-") and name.endswith(suffix)]


def _find(folder: Path, key: str, suffix: str, check: Callable[[bytes], bool] | None) -> tuple[Path, bytes] | None:
    """A sound entry of this key; damaged ones are removed on the way."""
    for path in _named(folder, key, suffix):
        try:
            content = path.read_bytes()
            if path.name == f"{key}-{_digest(content)}{suffix}" and (check is None or check(content)):
                _log.debug("taken from the kernel cache: %s", path)
                return path, content
            _log.debug("removed from the kernel cache, damaged or of another compiler: %s", path)
            path.unlink(missing_ok=True)
        except OSError:  # unreadable, or removed by another process: as good as absent
            continue
    return None


@contextlib.contextmanager
def _only_builder(folder: Path, key: str) -> Iterator[None]:
    """Wait while another process or thread builds the same entry: twice the work would be twice the time.

    One byte of one file is locked for each key. Where files cannot be locked, both build.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(folder.with_name(f".{folder.name}.lock").open("ab"))
            place = int(key[:8], 16)
            fcntl.fcntl(file, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
            # Closing the file would not unlock it while a forked child has it.
            unlock = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, place, 1, 0)
            stack.callback(fcntl.fcntl, file, fcntl.F_OFD_SETLK, unlock)
        yield


def _store(folder: Path, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
    """Build under a temporary name in the same folder, then rename: other processes see all of it or nothing."""
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, suffix=suffix, dir=folder)
        os.close(descriptor)
        temporary = Path(name)
        build(temporary)
        temporary.chmod(0o600)  # a linker leaves what the umask allows
        target = folder / f"{key}-{_digest(temporary.read_bytes())}{suffix}"
        _log.debug("put into the kernel cache: %s", target)
        os.replace(temporary, target)  # noqa: PTH105 - Path.replace says nothing of being atomic
    except OSError as error:
        raise KernelError(f"cannot store a compiled kernel in {folder}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return target
