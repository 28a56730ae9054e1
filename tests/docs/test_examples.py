"""Every example of README and docs runs (what that means is in the package's docstring)."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
import types
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from tests.docs.blocks import LANGUAGES, Block, blocks_of, commands_in, documents, without_blocks
from tests.docs.givens import given
from tests.docs.sandbox import BASES, HANG_S, Sandbox, sandbox
from tests.harness.gateway import Gateway, running_gateway

from taskgate.config.load import LoadedConfig, load_text

DEMO = {
    "servers": {name: {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]} for name in ("demo", "files")},
    "governance": {"rules": [{"match": "delete_*", "action": "approve", "reason": "Deletes for good"}]},
    "approval": {"default": {"self_approval": True}},
}
EVERYTHING = [block for document in documents() for block in blocks_of(document)]
RUN = sorted(
    {block.document for block in EVERYTHING if block.language in ("console", "python") and block.not_run is None}
)


class _AnyVariable(dict[str, str]):
    """An environment in which every variable is set."""

    def get(self, name: str, default: Any = None) -> Any:
        return (
            os.environ.get(name, default)
            if name.startswith("TASKGATE_")
            else "a-value-for-tests-that-is-long-enough-to-be-a-key"
        )


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """One for all documents, in a loop and thread of its own: the examples have loops of their own."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    found: list[Gateway] = []
    over = asyncio.Event()

    async def serve() -> None:
        async with running_gateway(DEMO) as gateway:
            found.append(gateway)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(HANG_S)
    yield found[0]
    loop.call_soon_threadsafe(over.set)
    thread.join(HANG_S)


@pytest.mark.parametrize("block", EVERYTHING, ids=str)
def test_a_code_block_has_a_language_and_can_be_parsed(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block}: say which language this is; text is for what is only looked at"
    if block.marker.startswith("not run"):
        assert block.not_run is not None, f"{block}: say why: <!-- example: not run, REASON -->"
    match block.language:
        case "text":
            assert not block.body.startswith("$ ") or block.not_run, f"{block}: commands belong into a console block"
        case "json":
            json.loads(block.body)
        case "toml":
            tomllib.loads(block.body)
        case "yaml":
            yaml.safe_load(block.body)
        case "python":
            compile(block.body, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case "console":
            script = "\n".join(command.text for command in commands_in(block))
            subprocess.run(["bash", "-n", "-c", script], check=True, timeout=HANG_S)


@pytest.mark.parametrize("document", documents())
def test_commands_are_in_fenced_blocks_that_are_run(document: str) -> None:
    hidden = re.findall(r"^ {4,}(?:\$ |taskgate |curl |pip ).*$", without_blocks(document), re.MULTILINE)
    assert not hidden, f"{document}: put them into a console block: {hidden}"


def is_configuration(block: Block) -> bool:
    """Of the gateway; `test_records_load` reads records."""
    is_record = block.file is not None and block.file.startswith("mcp.d/")
    return block.language == "yaml" and not is_record and block.not_run is None


@pytest.mark.parametrize("block", [block for block in EVERYTHING if is_configuration(block)], ids=str)
def test_a_configuration_loads(block: Block, tmp_path: Path) -> None:
    place = Sandbox(block.document, tmp_path, "127.0.0.1:1", "")
    for other in blocks_of(block.document):
        if other.file is not None:
            place._write(other.file, place.as_run(other.body))
    assert loaded(block, place).root is not None


def loaded(block: Block, place: Sandbox) -> LoadedConfig:
    shown = yaml.safe_load(place.as_run(block.body))
    whole = {**BASES[""], **BASES.get(block.document, {}), **shown}
    if "servers" not in shown:
        whole["servers"] = BASES[""]["servers"]
    text = yaml.safe_dump(whole, sort_keys=False)
    return load_text(text, str(block), place.folder, _AnyVariable())


@pytest.mark.parametrize("document", sorted({b.document for b in EVERYTHING if (b.file or "").startswith("mcp.d/")}))
def test_records_load(document: str, tmp_path: Path) -> None:
    place = Sandbox(document, tmp_path, "127.0.0.1:1", "")
    records = [block for block in blocks_of(document) if (block.file or "").startswith("mcp.d/")]
    for block in records:
        assert block.file is not None
        place._write(block.file, block.body)
    found = load_text("registry_dir: ./mcp.d\n", document, tmp_path, _AnyVariable())
    assert [str(warning) for warning in found.warnings] == []
    assert len(found.root.servers) == len(records)


@pytest.mark.parametrize("document", RUN)
def test_the_examples_of_a_document_run(document: str, gateway: Gateway, tmp_path: Path) -> None:
    blocks = blocks_of(document)
    token = (gateway.state / "operator-token").read_text().strip()
    with sandbox(document, tmp_path, gateway.base.removeprefix("http://"), token) as place:
        place.prepare(blocks)
        for block in blocks:
            if block.not_run is not None or block.file is not None:
                continue
            if block.language == "console":
                place.run(block)
            elif block.language == "python":
                run_python(block, place)


def run_python(block: Block, place: Sandbox) -> None:
    """In a thread of its own: an example may run a loop of its own. A relative path is one of the document's folder."""
    problem: list[BaseException] = []

    def run() -> None:
        try:
            os.chdir(place.folder)
            source = place.as_run(block.body)
            if block.givens or ("await " in source and "asyncio.run" not in source):
                asyncio.run(asyncio.wait_for(_in_loop(block, source, place), HANG_S))
            else:
                exec(compile(source, str(block), "exec"), {"__name__": "__main__"})
        except BaseException as error:
            problem.append(error)

    before = Path.cwd()
    thread = threading.Thread(target=run, daemon=True)
    known = {name: value for name, value in place.environment.items() if name.startswith(("TASKGATE_", "PATH"))}
    with mock.patch.dict(os.environ, known):
        thread.start()
        thread.join(HANG_S + 10)
    os.chdir(before)
    assert not thread.is_alive(), f"{block} does not end"
    if problem:
        raise AssertionError(f"{block}: {problem[0]!r}") from problem[0]


async def _in_loop(block: Block, source: str, place: Sandbox) -> None:
    names: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        for name in block.givens:
            names[name.removeprefix("question_")] = await given(name, f"http://{place.address}/mcp", stack, names)
        code = compile(source, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = types.FunctionType(code, names)()
        if asyncio.iscoroutine(result):
            await result
