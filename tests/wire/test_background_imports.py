"""Slow imports and the trust store are loaded in a thread."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from taskgate import late_imports
from taskgate.mcp.failures import HttpFailure
from taskgate.mcp.http import trust_store
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.target import Target

MODULE = "module_that_is_loaded_late"


@pytest.fixture
def late_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / f"{MODULE}.py").write_text("import threading\nTHREAD = threading.get_ident()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(late_imports, "_loaded", set())
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return MODULE


async def test_library_is_loaded_in_a_thread(late_module: str) -> None:
    await asyncio.gather(late_imports.load(late_module), late_imports.load(late_module))
    assert threading.get_ident() != sys.modules[late_module].THREAD


async def test_library_that_is_still_being_loaded_counts_as_absent(late_module: str) -> None:
    """Python lists a module before its code has run; importing it then would wait for the other thread."""
    sys.modules[late_module] = type(sys)(late_module)
    await late_imports.load(late_module)
    assert late_imports._loaded == {late_module}


async def test_trust_store_is_read_once_and_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    read_in: list[int] = []
    usual = ssl.create_default_context

    def read(*args: Any, **more: Any) -> ssl.SSLContext:
        read_in.append(threading.get_ident())
        return usual(*args, **more)

    monkeypatch.setattr(trust_store, "_contexts", {})
    monkeypatch.setattr(ssl, "create_default_context", read)
    for _ in range(2):
        client = HttpClient(connect_timeout_s=10)
        with pytest.raises(HttpFailure):
            await client.exchange(Target.parse("https://127.0.0.1:9/"), b"GET", deadline_s=10)
        await client.close()
    assert len(read_in) == 1
    assert read_in[0] != threading.get_ident()
