"""The program that the suite starts as the client under test: forwards its work to the test, and exits with the code of the test.

    python -I -S client_relay.py SOCKET SERVER_URL

The test has everything imported that it takes to start a gateway and to use it, so this program needs nothing.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as test:
    test.connect(sys.argv[1])
    variables = {name: value for name, value in os.environ.items() if name.startswith("MCP_CONFORMANCE_")}
    test.sendall(json.dumps([sys.argv[-1], variables]).encode() + b"\n")
    with test.makefile("r") as answer:
        failed = answer.read()
sys.exit(failed or 0)
