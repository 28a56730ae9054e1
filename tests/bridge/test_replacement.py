"""While `serve` replaces the gateway that bridges started, no bridge can start another one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from taskgate.bridge.gateway_files import GatewayFiles
from taskgate.inbound.local_address import ON_DEMAND, SERVE, LocalAddress, claim

WAIT_S = 60


def test_no_bridge_starts_a_gateway_while_serve_waits_for_the_previous_one(tmp_path: Path) -> None:
    files = GatewayFiles(str(tmp_path), None)
    previous = claim(files, ON_DEMAND)
    listening = previous.bind({"XDG_RUNTIME_DIR": str(tmp_path)})
    listening.listen()
    listening.settimeout(WAIT_S)
    previous.publish("http://127.0.0.1:1")
    found: list[LocalAddress] = []
    serving = threading.Thread(target=lambda: found.append(claim(files, SERVE)), daemon=True)
    serving.start()
    asked, _ = listening.accept()
    with asked:
        assert asked.recv(65536)
        assert files.try_lock("start") is None
    previous.withdraw()
    previous.release()
    serving.join(WAIT_S)
    listening.close()
    assert [address.kind for address in found] == [SERVE]
    free = files.try_lock("start")
    assert free is not None
    os.close(free)
    found[0].release()
