"""The cache of compiled kernels, shared by all devices.

An entry is one file `<key>-<digest><suffix>`: the key says what it was compiled from, the digest what the file must
contain. Both lie in the name, so an entry appears whole, by one rename, and a damaged one betrays itself. Loading an
entry runs its code; hence the folder and each entry must be ours alone (`own_files.py`), and code is loaded by the
folder that was checked.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from vgg16gpu.devices.own_files import OwnFolder, UntrustedError, open_own_folder
from vgg16gpu.errors import KernelError

_KEY_DIGITS = 32  # of SHA-256, in a file name
_TEMPORARY = ".building-"
_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process: struct flock of 64-bit Linux

_REFUSED = (
    "the kernel cache %s %s: kernels are compiled anew in every process (set VGG16GPU_CACHE to a folder of your own)"
)

_log = logging.getLogger(__name__)
_fallbacks: dict[Path, Path] = {}  # refused folder -> what stands in for it in this process
_fallback_lock = threading.Lock()
_listed: WeakKeyDictionary[OwnFolder, dict[str, list[str]]] = WeakKeyDictionary()  # names by key, as last seen


class CacheEntry(NamedTuple):
    """One compiled file in the cache."""

    path: Path
    nbytes: int
    modified: float  # seconds since the epoch


def cache_dir() -> Path:
    """Return the cache folder, which may not exist: VGG16GPU_CACHE, else vgg16gpu in XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("VGG16GPU_CACHE")
    if chosen:
        try:
            return Path(chosen).expanduser().absolute()
        except RuntimeError:  # of a user that is not there: as shells have it
            return Path(chosen).absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    if home and Path(home).is_absolute():  # the XDG rule: a relative value is to be ignored
        return Path(home) / "vgg16gpu"
    try:
        return Path.home() / ".cache" / "vgg16gpu"
    except RuntimeError:  # no HOME and no passwd entry, as in some containers
        return Path(tempfile.gettempdir()) / f"vgg16gpu-{os.getuid()}"


def refusal(folder: Path) -> str | None:
    """Return why `folder` (created if absent) cannot be trusted or used, or None if it can."""
    try:
        open_own_folder(folder)
    except UntrustedError as error:
        return str(error)
    return None


class CachedFile(NamedTuple):
    """An entry that was checked: its content, and where it is.

    is_new: it was built just now. `folder` keeps `code` good for as long as this object lives.
    """

    folder: OwnFolder
    name: str
    content: bytes
    is_new: bool = False

    @property
    def path(self) -> Path:
        """The path, for people and for what runs no code of it."""
        return self.folder.path / self.name

    @property
    def code(self) -> Path:
        """The same file for who loads it: by the folder that was checked, whatever `path` means by now."""
        return self.folder.place(self.name)

    def discard(self) -> None:
        """Remove it from the cache: it is of no use. Raises KernelError."""
        try:
            self.folder.remove(self.name)
        except OSError as error:
            raise KernelError(f"cannot remove {self.path} from the kernel cache: {error.strerror}") from error


class KernelCache:
    """The compiled kernels of one kind of device ("cpu", "cuda"). Safe for threads and parallel processes."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def folder(self) -> Path:
        """The folder of entries of this kind; it may not exist yet."""
        return cache_dir() / self.kind

    def fetch(
        self,
        key_parts: Sequence[bytes | str],
        suffix: str,
        build: Callable[[Path], None],
        check: Callable[[bytes], bool] | None = None,
    ) -> CachedFile:
        """Return what is compiled from `key_parts` (source, headers, flags, compiler version, architecture or CPU).

        A missing entry is made: `build(path)` must write the file `path`, whose name ends in `suffix`. An entry whose
        content does not match its digest, that others can have written, or that `check` refuses, is rebuilt. Raises
        whatever `build` raises, and KernelError if the result cannot be stored.
        """
        root, folder = self._usable_folder()
        key = self._key(key_parts, suffix)
        if found := _find(folder, key, suffix, check):
            return found
        with _only_builder(root, folder, key):
            found = _find(folder, key, suffix, check)  # another process may have built it meanwhile
            return found or _store(folder, key, suffix, build)

    def find(
        self, key_parts: Sequence[bytes | str], suffix: str, check: Callable[[bytes], bool] | None = None
    ) -> CachedFile | None:
        """Return the entry of these parts, if there is a sound one."""
        return _find(self._usable_folder()[1], self._key(key_parts, suffix), suffix, check)

    def _key(self, key_parts: Sequence[bytes | str], suffix: str) -> str:
        return _digest_of_parts([self.kind, suffix, *key_parts])

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the cache's entries, by name. Empty if there is no cache."""
        found = []
        for path in sorted(_files(self.folder)):
            if path.name.startswith(_TEMPORARY):
                continue
            with contextlib.suppress(OSError):  # another process may have removed it since
                status = path.stat()
                found.append(CacheEntry(path, status.st_size, status.st_mtime))
        return tuple(found)

    def size(self) -> int:
        """Return the bytes of all entries together."""
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

    def _usable_folder(self) -> tuple[OwnFolder, OwnFolder]:
        """Return the folder of all kinds, and that of this kind in it. Raises KernelError."""
        root = cache_dir()
        with _fallback_lock:
            if root not in _fallbacks:
                try:
                    folder = open_own_folder(root)
                    return folder, folder.inner(self.kind)
                except UntrustedError as error:
                    _fallbacks[root] = _private_folder(root)
                    _log.warning(_REFUSED, root, error)
            try:
                folder = open_own_folder(_fallbacks[root])
                return folder, folder.inner(self.kind)
            except UntrustedError as error:
                raise KernelError(f"no folder for compiled kernels: {_fallbacks[root]} {error}") from error


def _private_folder(refused: Path) -> Path:
    """Create a folder for this process alone, removed when it ends. Raises KernelError."""
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


def _find(folder: OwnFolder, key: str, suffix: str, check: Callable[[bytes], bool] | None) -> CachedFile | None:
    """Return a sound entry of this key; others are removed on the way.

    The folder is listed once in a process, and again for a key that the last listing lacks.
    """
    return _sound(folder, _listed.get(folder, {}), key, suffix, check) or _sound(
        folder, _list(folder), key, suffix, check
    )


def _list(folder: OwnFolder) -> dict[str, list[str]]:
    """Return the names of entries by their keys, and keep them for lookups to come."""
    names: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        for name in folder.names():
            names.setdefault(name.partition("-")[0], []).append(name)
    _listed[folder] = names
    return names


def _sound(
    folder: OwnFolder, names: Mapping[str, Sequence[str]], key: str, suffix: str, check: Callable[[bytes], bool] | None
) -> CachedFile | None:
    """Return the first of these entries that is sound; remove those before it."""
    for name in names.get(key, ()):
        if not name.endswith(suffix):
            continue
        content = folder.read(name)
        if content is not None and name == f"{key}-{_digest(content)}{suffix}" and (check is None or check(content)):
            _log.debug("taken from the kernel cache: %s", folder.path / name)
            return CachedFile(folder, name, content)
        _log.debug("removed from the kernel cache, damaged, not ours or of another compiler: %s", folder.path / name)
        with contextlib.suppress(OSError):  # a folder: as good as absent
            folder.remove(name)
    return None


@contextlib.contextmanager
def _only_builder(root: OwnFolder, folder: OwnFolder, key: str) -> Iterator[None]:
    """Wait while another process or thread builds the same entry: twice the work would be twice the time.

    One byte of one file is locked for each key. Where files cannot be locked, both build.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            number = root.lock_file(f".{folder.path.name}.lock")
            stack.callback(os.close, number)
            place = int(key[:8], 16)
            fcntl.fcntl(number, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
            # Closing the file would not unlock it while a forked child has it.
            unlock = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, place, 1, 0)
            stack.callback(fcntl.fcntl, number, fcntl.F_OFD_SETLK, unlock)
        yield


def _store(folder: OwnFolder, key: str, suffix: str, build: Callable[[Path], None]) -> CachedFile:
    """Build under a temporary name in the same folder, then rename: other processes see all of it or nothing."""
    temporary: Path | None = None
    try:
        temporary = folder.make(_TEMPORARY, suffix)
        build(temporary)
        folder.make_private(temporary.name)
        content = folder.read(temporary.name)
        if content is None:
            raise OSError("what was compiled is not there")
        target = f"{key}-{_digest(content)}{suffix}"
        _log.debug("put into the kernel cache: %s", folder.path / target)
        folder.rename(temporary.name, target)
        _listed.setdefault(folder, {})[key] = [target]
    except OSError as error:
        raise KernelError(
            f"cannot store a compiled kernel in {folder.path}: {error.strerror or error}; delete that folder, or set "
            "VGG16GPU_CACHE to another one"
        ) from error
    finally:
        if temporary is not None:
            folder.remove(temporary.name)
    return CachedFile(folder, target, content, is_new=True)
