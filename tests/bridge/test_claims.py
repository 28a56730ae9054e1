"""The lock of a state folder, when the folder is removed while a gateway holds it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from taskgate.bridge.gateway_files import GatewayFiles
from taskgate.inbound.local_address import ON_DEMAND, AddressTaken, claim


@pytest.mark.parametrize("order", ["ends after the next one has come", "ends before"])
def test_gateway_without_lock_does_not_affect_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    (tmp_path / "r").mkdir(mode=0o700)
    environment = {"XDG_RUNTIME_DIR": str(tmp_path / "r")}
    state = tmp_path / "s"
    first = claim(GatewayFiles(str(state), None), ON_DEMAND)
    sockets = [first.bind(environment)]
    first.publish("http://127.0.0.1:1")
    assert first.lost() is None
    with pytest.raises(AddressTaken):
        claim(GatewayFiles(str(state), None), ON_DEMAND)
    shutil.rmtree(state)
    assert first.lost() is not None
    if order == "ends before":
        first.withdraw()
    second = claim(GatewayFiles(str(state), None), ON_DEMAND)
    sockets.append(second.bind(environment))
    second.publish("http://127.0.0.1:2")
    first.withdraw()
    first.release()
    record = second.files.record()
    assert record is not None
    assert record["url"] == "http://127.0.0.1:2"
    assert Path(record["address"].removeprefix("unix:")).exists()
    second.withdraw()
    assert second.files.record() is None
    second.release()
    for each in sockets:
        each.close()
