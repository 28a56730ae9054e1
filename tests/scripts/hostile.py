"""Scripts that try to harm, each with the outcome that it must have."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace
from tests.scripts.driving import LIMITS

from taskgate.ports.script_interpreter import FailureReason, ScriptLimits

SHORT = replace(LIMITS, step_seconds=1, output_bytes=10_000, result_bytes=200_000, snapshot_bytes=500_000)


@dataclass(frozen=True, slots=True)
class Hostile:
    """A script, and how its first step must end: `finished`, or the reason and type of the failure."""

    name: str
    code: str
    ends: tuple[FailureReason, str] | None
    limits: ScriptLimits = SHORT


_SCRIPT, _LIMIT = FailureReason.SCRIPT, FailureReason.LIMIT

TABLE = (
    Hostile("infinite loop", "while True:\n    pass", (_LIMIT, "step_seconds")),
    Hostile(
        "catches everything in a loop",
        "while True:\n    try:\n        while True:\n            1 / 0\n    except BaseException:\n        pass",
        (_LIMIT, "step_seconds"),
    ),
    Hostile(
        "loop of clock readings",
        "while True:\n    now()",
        (_LIMIT, "suspensions"),
        replace(SHORT, step_seconds=60, wall_seconds=120),
    ),
    Hostile("regular expression", "import re\nre.match('(a+)+$', 'a' * 60 + 'b')", None),
    Hostile("large text", "'a' * 10 ** 10", (_LIMIT, "memory_bytes")),
    Hostile("large list", "[0] * 10 ** 10", (_LIMIT, "memory_bytes")),
    Hostile("large integer", "2 ** 10 ** 9", (_LIMIT, "memory_bytes")),
    Hostile("memory in pieces", "x = []\nwhile True:\n    x.append('a' * 100000)", (_LIMIT, "memory_bytes")),
    Hostile(
        "memory, caught", "try:\n    x = 'a' * 10 ** 10\nexcept BaseException:\n    pass\n1", (_LIMIT, "memory_bytes")
    ),
    Hostile("recursion", "def f(n):\n    return f(n + 1)\nf(0)", (_LIMIT, "recursion")),
    Hostile("deep value", "x = []\nfor i in range(100000):\n    x = [x]\nx", (_SCRIPT, "ResultNotJson")),
    Hostile("value that contains itself", "x = []\nx.append(x)\nx", (_SCRIPT, "ResultNotJson")),
    Hostile("growing integer", "x = 3\nwhile True:\n    x = x * x", (_LIMIT, "step_seconds")),
    Hostile(
        "long regular expression",
        "import re\nre.sub('a*?b*?c*?' * 300, '', 'abc' * 100000)",
        (_LIMIT, "step_seconds"),
        replace(SHORT, memory_bytes=64 * 1024 * 1024),
    ),
    Hostile("large regular expression", "import re\nre.match('ab' * 500000, 'x')", (_LIMIT, "memory_bytes")),
    Hostile("exit with a number", "raise SystemExit(3)", (_SCRIPT, "TypeError")),
    Hostile("shared parts as result", "x = []\nfor i in range(40):\n    x = [x, x]\nx", (_LIMIT, "result_bytes")),
    Hostile(
        "shared parts as argument",
        "x = []\nfor i in range(40):\n    x = [x, x]\nawait files.read_file(x)",
        (_LIMIT, "result_bytes"),
    ),
    Hostile("large result", "'a' * 1000000", (_LIMIT, "result_bytes")),
    Hostile("large argument", "await files.read_file('a' * 1000000)", (_LIMIT, "result_bytes")),
    Hostile(
        "large state",
        "x = [str(i * 7919) * 3 for i in range(60000)]\nawait files.read_file()",
        (_LIMIT, "snapshot_bytes"),
        replace(SHORT, step_seconds=10),
    ),
    Hostile("endless output", "while True:\n    print('x' * 1000)", (_LIMIT, "step_seconds")),
    Hostile(
        "100,000 parallel calls",
        "import asyncio\nawait asyncio.gather(*[files.read_file(i) for i in range(100000)])",
        (_SCRIPT, "RuntimeError"),
        replace(SHORT, step_seconds=10),
    ),
    Hostile(
        "1,000,000 refused calls",
        "for i in range(1000000):\n    try:\n        files.read_file(i)\n    except Exception:\n        pass",
        (_LIMIT, "suspensions"),
        replace(SHORT, step_seconds=60, wall_seconds=120),
    ),
    Hostile("file", "open('/etc/passwd').read()", (_SCRIPT, "PermissionError")),
    Hostile("file by pathlib", "import pathlib\npathlib.Path('/etc/passwd').read_text()", (_SCRIPT, "PermissionError")),
    Hostile("write a file", "open('/tmp/taskgate-hostile', 'w').write('x')", (_SCRIPT, "PermissionError")),
    Hostile("environment", "import os\nos.getenv('PATH')", (_SCRIPT, "RuntimeError")),
    Hostile("network", "import socket", (_SCRIPT, "ModuleNotFoundError")),
    Hostile("program", "import subprocess", (_SCRIPT, "ModuleNotFoundError")),
    Hostile("import of the gateway", "import taskgate", (_SCRIPT, "ModuleNotFoundError")),
    Hostile("ctypes", "import ctypes", (_SCRIPT, "ModuleNotFoundError")),
    Hostile("__import__", "__import__('os').system('id')", (_SCRIPT, "NameError")),
    Hostile("classes of a value", "().__class__.__mro__", (_SCRIPT, "AttributeError")),
    Hostile("globals of a function", "def f():\n    pass\nf.__globals__", (_SCRIPT, "AttributeError")),
    Hostile("code of a function", "(lambda: 1).__code__", (_SCRIPT, "AttributeError")),
    Hostile("private function of the prelude", "_error_parts(1)", (_SCRIPT, "TypeError")),
    Hostile("time.sleep", "import time\ntime.sleep(1000)", (_SCRIPT, "RuntimeError")),
    Hostile("much entropy", "import os\nos.urandom(10 ** 9)", (_LIMIT, "memory_bytes")),
    Hostile("100,000 parentheses", "(" * 100000 + ")" * 100000, (_SCRIPT, "SyntaxError")),
    Hostile("66,000 fields of an f-string", 'f"' + "{a}" * 66000 + '"', (_SCRIPT, "SyntaxError")),
    Hostile("texts without an end", "\\'''\n" * 39000, (_SCRIPT, "SyntaxError")),
    Hostile("null bytes", "x = '\0'\n1", None),
    Hostile("1 MB of one line", "x = " + " + ".join(["1"] * 250000), (FailureReason.WORKER, "interpreter_ended")),
)
