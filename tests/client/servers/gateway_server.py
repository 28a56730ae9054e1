"""This gateway in front of one behaviour server, with that server's own tool names.

gateway_server.py GRACE_MS PYTHON PROGRAM --http PORT
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

grace_ms, python, program, _, port = sys.argv[1:]
folder = Path(tempfile.mkdtemp(prefix="client-gateway-"))
config = {
    "schema": 1,
    "servers": {"up": {"command": python, "args": [program, "--stdio"], "instances": "shared"}},
    "tasks": {"grace_ms": int(grace_ms)},
    "scopes": {"default": {"default_servers": ["*"], "names": "plain"}},
}
(folder / "taskgate.yaml").write_text(json.dumps(config))
os.environ["TASKGATE_STATE_DIR"] = str(folder / "state")
command = [sys.executable, "-m", "taskgate", "serve", "-c", str(folder / "taskgate.yaml"), "--port", port]
os.execv(sys.executable, command)
