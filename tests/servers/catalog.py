"""The servers: how each is started in its own folder, and the requests that it is sent, including invalid ones."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.absent import HOME, find_browser

NODE = str(HOME / "node")
OFFICIAL = "node_modules/@modelcontextprotocol"
PYTHON = str(HOME / "servers-python/bin/python")
"""Programs that pip writes carry the path of the folder in which they were installed; modules are found wherever it is."""
Asked = tuple[str, dict[str, Any]]
"""A tool and its arguments; `{folder}` and `{web}` in a text are replaced by the server's folder and the web page to fetch."""


def nothing(folder: Path) -> None:
    """Most servers need only an empty folder."""


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    peer: str
    command: tuple[str, ...]
    calls: tuple[Asked, ...]
    prompts: tuple[Asked, ...] = ()
    resources: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = nothing
    environment: tuple[tuple[str, str], ...] = ()
    in_tests: bool = True


def with_files(folder: Path) -> None:
    (folder / "letter.txt").write_text("Dear reader,\nhello.\n")
    (folder / "more").mkdir()


def with_a_repository(folder: Path) -> None:
    """Two commits whose ids do not depend on when they are made."""
    moment = "2026-01-02T03:04:05+00:00"
    people = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in PERSON.items()}
    env = {
        "GIT_AUTHOR_DATE": moment,
        "GIT_COMMITTER_DATE": moment,
        "HOME": str(folder),
        "PATH": "/usr/bin:/bin",
        **people,
    }
    with_files(folder)
    for words in (
        ("init", "-q", "-b", "main"),
        ("add", "."),
        ("commit", "-q", "-m", "First"),
        ("checkout", "-q", "-b", "side"),
    ):
        subprocess.run(["git", *words], cwd=folder, env=env, check=True, timeout=60)
    (folder / "letter.txt").write_text("Dear reader,\nhello again.\n")


PERSON = {"NAME": "Ann", "EMAIL": "ann@example.test"}


def npm(peer: str, package: str) -> tuple[str, str]:
    return NODE, str(HOME / peer / OFFICIAL / package / "dist/index.js")


SERVERS = (
    Server(
        "everything",
        "everything",
        (*npm("everything", "server-everything"), "stdio"),
        (
            ("echo", {"message": "grüße"}),
            ("get-sum", {"a": 2, "b": 3}),
            ("get-tiny-image", {}),
            ("get-structured-content", {"location": "New York"}),
            ("get-annotated-message", {"messageType": "error", "includeImage": True}),
            ("get-resource-links", {"count": 2}),
            ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
            ("get-sum", {"a": "two"}),
            ("no-such-tool", {}),
        ),
        (("simple-prompt", {}), ("args-prompt", {"city": "Ulm"}), ("no-such-prompt", {})),
        ("demo://resource/dynamic/text/1", "demo://resource/no/such"),
    ),
    Server(
        "filesystem",
        "servers-npm",
        (*npm("servers-npm", "server-filesystem"), "{folder}"),
        (
            ("list_allowed_directories", {}),
            ("list_directory", {"path": "{folder}"}),
            ("read_text_file", {"path": "{folder}/letter.txt", "head": 1}),
            ("write_file", {"path": "{folder}/new.txt", "content": "new\n"}),
            ("edit_file", {"path": "{folder}/new.txt", "edits": [{"oldText": "new", "newText": "old"}]}),
            ("directory_tree", {"path": "{folder}"}),
            ("read_text_file", {"path": "{folder}/missing.txt"}),
            ("read_text_file", {"path": "/etc/hostname"}),
        ),
        prepare=with_files,
    ),
    Server(
        "memory",
        "servers-npm",
        npm("servers-npm", "server-memory"),
        (
            ("create_entities", {"entities": [{"name": "Ann", "entityType": "person", "observations": ["reads"]}]}),
            ("add_observations", {"observations": [{"entityName": "Ann", "contents": ["writes"]}]}),
            ("search_nodes", {"query": "writes"}),
            ("read_graph", {}),
            ("add_observations", {"observations": [{"entityName": "Nobody", "contents": ["is"]}]}),
        ),
        environment=(("MEMORY_FILE_PATH", "{folder}/memory.jsonl"),),
    ),
    Server(
        "sequential-thinking",
        "servers-npm",
        npm("servers-npm", "server-sequential-thinking"),
        (
            (
                "sequentialthinking",
                {"thought": "one", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2},
            ),
            (
                "sequentialthinking",
                {"thought": "two", "nextThoughtNeeded": False, "thoughtNumber": 2, "totalThoughts": 2},
            ),
            ("sequentialthinking", {"thought": "what"}),
        ),
    ),
    Server(
        "git",
        "servers-python",
        (PYTHON, "-m", "mcp_server_git", "--repository", "{folder}"),
        (
            ("git_status", {"repo_path": "{folder}"}),
            ("git_diff_unstaged", {"repo_path": "{folder}"}),
            ("git_log", {"repo_path": "{folder}", "max_count": 3}),
            ("git_branch", {"repo_path": "{folder}", "branch_type": "local"}),
            ("git_show", {"repo_path": "{folder}", "revision": "main"}),
            ("git_show", {"repo_path": "{folder}", "revision": "nowhere"}),
            ("git_status", {"repo_path": "/"}),
        ),
        prepare=with_a_repository,
    ),
    Server(
        "time",
        "servers-python",
        (PYTHON, "-m", "mcp_server_time", "--local-timezone", "Europe/Berlin"),
        (
            ("get_current_time", {"timezone": "Asia/Tokyo"}),
            ("convert_time", {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}),
            ("get_current_time", {"timezone": "Nowhere/At_All"}),
        ),
    ),
    Server(
        "fetch",
        "servers-python",
        (PYTHON, "-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"),
        (
            ("fetch", {"url": "{web}/"}),
            ("fetch", {"url": "{web}/", "raw": True, "max_length": 20}),
            ("fetch", {"url": "{web}/missing"}),
            ("fetch", {"url": "no address"}),
        ),
        (("fetch", {"url": "{web}/"}),),
        in_tests=False,
    ),
    Server(
        "playwright",
        "playwright",
        (
            NODE,
            str(HOME / "playwright/node_modules/@playwright/mcp/cli.js"),
            "--headless",
            "--isolated",
            "--no-sandbox",
            "--output-dir",
            "{folder}",
            "--executable-path",
            find_browser() or "chromium",
        ),
        (
            ("browser_navigate", {"url": "{web}/"}),
            ("browser_snapshot", {}),
            ("browser_click", {"element": "nothing", "target": "e99999"}),
            ("browser_close", {}),
        ),
        in_tests=False,
    ),
)
