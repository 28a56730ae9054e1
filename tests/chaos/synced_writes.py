"""What a disk would hold after a power cut, from a strace of the program that wrote to it.

A file's content is what had been written when a sync of it *began*, once that sync has *returned*; its name is there
once its folder was synced. Everything later is lost, or (`torn`) some of it has reached the disk by chance, in any
order. Acknowledgements are the program's writes to its standard output, in the same trace, so what was acknowledged when
is known exactly.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TRACED = "openat,pwrite64,write,ftruncate,fsync,fdatasync,unlink,unlinkat"
_CALL = re.compile(r"^(\d+) +(\w+)\((.*)$", re.DOTALL)
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$", re.DOTALL)
_ENDED = re.compile(r"\) += (-?\d+)")
_FD = re.compile(r"^(\d+)<([^>]*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_UNFINISHED = " <unfinished ...>"


@dataclass
class DiskFile:
    """One file: what programs see, what surely survives, and the writes in between."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytes | None = None
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    position: int = 0
    is_named: bool = False
    is_unlinked: bool = False


@dataclass
class Moment:
    """A point at which the power might fail: everything acknowledged until then, and the disk."""

    acknowledged: tuple[str, ...]
    files: dict[str, bytes]


class Disk:
    """Replays the calls of a trace, one at a time."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.files: dict[str, DiskFile] = {}
        self._syncing: dict[str, tuple[str, bytes, list[tuple[str, bool]]]] = {}

    def begin(self, pid: str, call: str, arguments: str) -> None:
        if call not in ("fsync", "fdatasync"):
            return
        path = _path(arguments)
        if path is not None:
            content = bytes(self.files[path].seen) if path in self.files else b""
            names = [(name, file.is_unlinked) for name, file in self.files.items() if name.rpartition("/")[0] == path]
            self._syncing[pid] = (path, content, names)

    def end(self, pid: str, call: str, arguments: str) -> None:
        if call in ("fsync", "fdatasync"):
            self._synced(*self._syncing.pop(pid))
        elif call == "openat":
            self._opened(arguments)
        elif call in ("pwrite64", "write"):
            self._wrote(call, arguments)
        elif call == "ftruncate":
            path = _path(arguments)
            if path in self.files:
                size = int(arguments.rsplit(",", 1)[1].split(")")[0])
                file = self.files[path]
                file.seen[size:] = b"\0" * max(0, size - len(file.seen))
        elif call in ("unlink", "unlinkat"):
            path = _texts(arguments)[0].decode()
            if path in self.files:
                self.files[path].is_unlinked = True

    def _synced(self, path: str, content: bytes, names: list[tuple[str, bool]]) -> None:
        if path in self.files:
            file = self.files[path]
            file.durable = content
            file.unsynced = []
        for name, was_unlinked in names:
            if name in self.files and was_unlinked:
                del self.files[name]
            elif name in self.files:
                self.files[name].is_named = True

    def _opened(self, arguments: str) -> None:
        path = _texts(arguments)[0].decode()
        if "O_CREAT" in arguments and path.startswith(self._folder):
            known = self.files.get(path)
            if known is None or known.is_unlinked:
                self.files[path] = DiskFile()

    def _wrote(self, call: str, arguments: str) -> None:
        path = _path(arguments)
        if path not in self.files:
            return
        file, data = self.files[path], _texts(arguments)[0]
        if call == "pwrite64":
            at = int(arguments[: arguments.rindex(")")].rsplit(",", 1)[1])
        else:
            at, file.position = file.position, file.position + len(data)
        if len(file.seen) < at:
            file.seen += b"\0" * (at - len(file.seen))
        file.seen[at : at + len(data)] = data
        file.unsynced.append((at, data))

    def after_power_cut(self, chance: random.Random | None) -> dict[str, bytes]:
        """Name to content of what is left. With `chance`, some unsynced writes made it to the disk as well."""
        left = {}
        for path, file in self.files.items():
            if path.endswith(("-shm", ".lock")) or not file.is_named:
                continue
            content = bytearray(file.durable or b"")
            for at, data in file.unsynced if chance is not None else ():
                if chance is not None and chance.random() < 0.5:
                    content[len(content) :] = b"\0" * max(0, at - len(content))
                    content[at : at + len(data)] = data
            left[path] = bytes(content)
        return left


def moments(trace: Path, folder: Path, *, torn: bool = False) -> Iterator[Moment]:
    """The disk after each acknowledgement, as a power cut at that moment would leave it."""
    disk = Disk(str(folder))
    waiting: dict[str, tuple[str, str]] = {}
    acknowledged: list[str] = []
    chance = random.Random(7) if torn else None
    for line in trace.read_text().splitlines():
        for pid, call, arguments, is_over in _events(line, waiting):
            if not is_over:
                disk.begin(pid, call, arguments)
                continue
            if call == "write" and arguments.startswith("1<"):
                acknowledged += _texts(arguments)[0].decode().splitlines()
                yield Moment(tuple(acknowledged), disk.after_power_cut(chance))
            disk.end(pid, call, arguments)


def _events(line: str, waiting: dict[str, tuple[str, str]]) -> Iterator[tuple[str, str, str, bool]]:
    """The begin and the end of calls in one line of the trace; failed calls are left out."""
    if resumed := _RESUMED.match(line):
        pid, _, tail = resumed.groups()
        call, arguments = waiting.pop(pid)
        if _worked(tail):
            yield pid, call, arguments + tail, True
    elif started := _CALL.match(line):
        pid, call, arguments = started.groups()
        yield pid, call, arguments, False
        if arguments.endswith(_UNFINISHED):
            waiting[pid] = (call, arguments.removesuffix(_UNFINISHED))
        elif _worked(arguments):
            yield pid, call, arguments, True


def _worked(tail: str) -> bool:
    ended = _ENDED.search(tail)
    return ended is not None and int(ended.group(1)) >= 0


def _unescape(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _path(arguments: str) -> str | None:
    found = _FD.match(arguments)
    return None if found is None or not found.group(2).startswith("\\x") else _unescape(found.group(2)).decode()


def _texts(arguments: str) -> list[bytes]:
    return [_unescape(text) for text in _TEXT.findall(arguments)]
