"""Paths in a configuration: relative ones start at the file's own folder, `~` is the home folder, policies must be
readable.

Reading small text files safely: regular files only, bounded, UTF-8.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from taskgate.config.gateway_file import GatewayFile
from taskgate.config.problems import ConfigError, Problem, problem_at
from taskgate.config.providers import Provider
from taskgate.config.servers import Server
from taskgate.config.switches import Listen
from taskgate.config.tree import Mapping, text_of

_SQLITE = "sqlite:///"


def absolute(text: str, base: Path) -> str:
    """A path of the file, from its own folder, without `.` and `..`."""
    return os.path.normpath(base / Path(text).expanduser())


def resolve_paths(root: GatewayFile, base: Path) -> GatewayFile:
    """The configuration with every path made absolute."""
    cedar = root.cedar.model_copy(
        update={
            "policies": tuple(absolute(policy, base) for policy in root.cedar.policies),
            "entities": absolute(root.cedar.entities, base) if root.cedar.entities else None,
        }
    )
    store = root.store
    if store is not None and store.url.startswith(_SQLITE) and store.url != f"{_SQLITE}:memory:":
        file = absolute(store.url.removeprefix(_SQLITE), base)
        store = store.model_copy(update={"url": f"{_SQLITE}{file}"})
    return root.model_copy(
        update={
            "cedar": cedar,
            "listen": _listen(root.listen, base),
            "store": store,
            "registry_dir": absolute(root.registry_dir, base) if root.registry_dir else None,
            "servers": {name: _server(server, base) for name, server in root.servers.items()},
            "providers": {name: _provider(provider, base) for name, provider in root.providers.items()},
        }
    )


def _listen(listen: Listen, base: Path) -> Listen:
    if listen.tls is None:
        return listen
    files = {name: getattr(listen.tls, name) for name in ("cert", "key", "client_ca")}
    tls = listen.tls.model_copy(update={name: absolute(file, base) for name, file in files.items() if file is not None})
    return listen.model_copy(update={"tls": tls})


def unreadable(tree: Mapping, base: Path) -> list[Problem]:
    """Policy files that cannot be read: better to know at the start than at the first call."""
    problems = []
    cedar = tree.map("cedar")
    named = [(node, f"cedar.policies[{i}]") for i, node in enumerate(cedar.list("policies"))]
    if (entities := cedar.get("entities")) is not None:
        named.append((entities, "cedar.entities"))
    for node, key in named:
        text = text_of(node)
        if text is not None and not _readable(absolute(text, base)):
            problems.append(
                problem_at(
                    node.mark, key, f'the file "{text}" cannot be read', "check the path; it starts at this file"
                )
            )
    return problems


def _readable(path: str) -> bool:
    return "\0" not in path and os.path.isfile(path) and os.access(path, os.R_OK)


def _server(server: Server, base: Path) -> Server:
    return server.model_copy(update={"cwd": absolute(server.cwd, base)}) if server.cwd else server


def _provider(provider: Provider, base: Path) -> Provider:
    if provider.api_key_file is None:
        return provider
    return provider.model_copy(update={"api_key_file": absolute(provider.api_key_file, base)})


def read_text(path: Path, limit: int) -> str:
    """The text of a file; anything that keeps it from being one is a ConfigError that names it."""
    return decode(read_bytes(path, limit), str(path))


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of a regular file that is not larger than the limit."""
    name = str(path)
    try:
        # Non-blocking, so that a named pipe put in place of the file cannot hang the start.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            [Problem(name, 0, 0, "", f"cannot be opened ({reason})", "check the path and its rights")]
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError([Problem(name, 0, 0, "", "is not a regular file", "give the path of a text file")])
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ConfigError([Problem(name, 0, 0, "", f"is larger than {limit} bytes", "is this the right file?")])
    return data


def decode(data: bytes, name: str) -> str:
    """UTF-8 text without its byte order mark."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        column = error.start - (data[: error.start].rfind(b"\n") + 1) + 1
        raise ConfigError(
            [Problem(name, line, column, "", "is not UTF-8 text", "save it as UTF-8; is this the right file?")]
        ) from None
    if "\0" in text[:65536]:
        line = text[: text.index("\0")].count("\n") + 1
        raise ConfigError(
            [Problem(name, line, 1, "", "is not a text file (it holds NUL bytes)", "is this the right file?")]
        )
    return text
