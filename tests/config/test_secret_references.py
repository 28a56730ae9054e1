"""Secrets by reference: files, the keyring and commands, how they fail, and that their values are never repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.absent import HOME
from tests.harness.raised import raises_problem

from taskgate.assembly.plan import build_plan
from taskgate.config import ConfigError, LoadedConfig, load
from taskgate.config import secret_sources as sources

KEYRING = """
import json, pathlib, threading

opened, asked = threading.Event(), []

class Locked(Exception):
    pass

def get_password(service, user):
    if service == "locked":
        raise Locked("the words of a backend: hunter2")
    asked.append(service)
    if service == "waiting":
        opened.wait(60)
    return json.loads(pathlib.Path(__file__).with_name("entries.json").read_text()).get(f"{service}/{user}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    secret = tmp_path / "token"
    secret.write_text("from-file\n")
    secret.chmod(0o600)
    return tmp_path


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of that name with the one function that is called: machines that run tests have no keyring."""
    package = tmp_path / "site"
    package.mkdir()
    (package / "keyring.py").write_text(KEYRING)
    entries = {"a/b/ann": "from-keyring", "big/ann": "x" * (sources.MAX_SECRET_BYTES + 1), "empty/ann": ""}
    (package / "entries.json").write_text(json.dumps(entries))
    monkeypatch.syspath_prepend(package)
    monkeypatch.delitem(sys.modules, "keyring", raising=False)
    yield package
    sys.modules.pop("keyring", None)


@pytest.mark.peers("keyring")
def test_an_entry_is_read_from_a_real_file_keyring(folder: Path) -> None:
    python = HOME / "keyring/bin/python"
    (packages,) = (HOME / "keyring/lib").glob("python*/site-packages")
    backend = {"PYTHON_KEYRING_BACKEND": "keyrings.alt.file.PlaintextKeyring", "XDG_DATA_HOME": str(folder)}
    env = {**os.environ, **backend}
    keep = "import keyring; keyring.set_password('vault', 'ann', 's3cret-in-a-real-keyring')"
    subprocess.run([python, "-c", keep], env=env, check=True, timeout=120)
    file = folder / "taskgate.yaml"
    file.write_text("allowed_hosts: ['${keyring:vault/ann}', x]\n")
    ask = "import sys; from taskgate.config import load; print(load(sys.argv[1]).root.allowed_hosts[0])"
    env["PYTHONPATH"] = os.pathsep.join((*filter(None, (env.get("PYTHONPATH"),)), str(packages)))
    done = subprocess.run([sys.executable, "-c", ask, file], env=env, check=True, timeout=120, capture_output=True)
    assert done.stdout.decode().strip() == "s3cret-in-a-real-keyring"
    file.write_text("allowed_hosts: ['${keyring:vault/eve}']\n")
    refused = subprocess.run([sys.executable, "-c", ask, file], env=env, check=False, timeout=120, capture_output=True)
    assert b"is not in the keyring" in refused.stderr


def read(folder: Path, text: str) -> LoadedConfig:
    file = folder / "taskgate.yaml"
    file.write_text(text)
    return load(file, {"HOME": str(folder)})


def hosts(folder: Path, reference: str, more: str = "") -> tuple[str, ...]:
    return read(folder, f"allowed_hosts: [{json.dumps(reference)}]\n{more}").root.allowed_hosts


def script(folder: Path, text: str) -> str:
    (folder / "script.py").write_text(text)
    return f"${{command:{sys.executable} script.py}}"


ALLOWED = "secrets: {allow_command: true}\n"


def test_a_secret_file_is_relative_to_the_configuration_and_loses_one_newline(folder: Path) -> None:
    assert hosts(folder, "x${file:token}y") == ("xfrom-filey",)
    assert hosts(folder, f"${{file:{folder}/token}}") == ("from-file",)
    (folder / "token").write_bytes(b"two\n\r\n")
    assert hosts(folder, "${file:token}") == ("two\n",)
    assert hosts(folder, "$${file:token}") == ("${file:token}",)


def test_a_secret_file_is_read_at_each_load_and_watched_for_changes(folder: Path) -> None:
    loaded = read(folder, "allowed_hosts: ['${file:token}', '${file:token}']\n")
    assert loaded.watch == (folder / "taskgate.yaml", folder / "token")
    assert loaded.warnings == ()
    (folder / "token").write_text("changed")
    assert load(folder / "taskgate.yaml", {}).root.allowed_hosts == ("changed", "changed")


def test_a_world_readable_secret_file_causes_one_warning(folder: Path) -> None:
    (folder / "token").chmod(0o644)
    (warning,) = read(folder, "allowed_hosts: ['${file:token}', '${file:token}']\n").warnings
    assert (warning.line, warning.key) == (1, "allowed_hosts[0]")
    assert "can be read by every user" in warning.message
    assert warning.hint == f"chmod o-r {folder}/token"


def test_an_entry_is_read_from_the_keyring(folder: Path, keyring: Path) -> None:
    assert hosts(folder, "${keyring:a/b/ann}") == ("from-keyring",)


def test_a_command_is_split_and_run_without_a_shell_in_the_folder(folder: Path) -> None:
    command = script(
        folder, "import os, sys; print(os.getcwd(), *sys.argv[1:], sep='|'); print('hunter2', file=sys.stderr)"
    )
    (found,) = hosts(folder, command.replace("script.py", "script.py 'a b' $HOME ; c"), ALLOWED)
    assert found == f"{folder}|a b|$HOME|;|c"


def test_a_command_is_run_once_for_each_reading(folder: Path) -> None:
    command = script(folder, "open('ran', 'a').write('x'); print('s3')")
    assert read(folder, f"allowed_hosts: ['{command}', '{command}']\n{ALLOWED}").root.allowed_hosts == ("s3", "s3")
    assert (folder / "ran").read_text() == "x"


FAILURES = [
    ("${file:none}", "cannot be opened (No such file or directory)"),
    ("${file:.}", "is not a regular file"),
    ("${file: }", "names no file"),
    ("${file:big}", f"is larger than {sources.MAX_SECRET_BYTES} bytes"),
    ("${file:empty}", "is empty"),
    ("${file:binary}", "is not UTF-8 text"),
    ("${keyring:a}", "names no service and user"),
    ("${keyring:none/ann}", "is not in the keyring"),
    ("${keyring:big/ann}", f"is larger than {sources.MAX_SECRET_BYTES} bytes"),
    ("${keyring:empty/ann}", "is empty"),
    ("${keyring:locked/ann}", "cannot be read from the keyring (Locked)"),
    ("${command:'x}", "has an unclosed quote"),
    ("${command: }", "names no command"),
    ("${command:./none}", "cannot be started (No such file or directory)"),
    (f"${{command:{sys.executable} fails.py}}", "failed with exit status 3"),
    (f"${{command:{sys.executable} floods.py}}", f"prints more than {sources.MAX_SECRET_BYTES} bytes"),
]


@pytest.fixture
def failing(folder: Path, keyring: Path) -> Path:
    (folder / "big").write_text("hunter2" * sources.MAX_SECRET_BYTES)
    (folder / "empty").write_text("\n")
    (folder / "binary").write_bytes(b"hunter2\xff")
    (folder / "fails.py").write_text("import sys; print('hunter2'); print('hunter2', file=sys.stderr); sys.exit(3)")
    (folder / "floods.py").write_text("while True: print('hunter2' * 1000)")
    return folder


@pytest.mark.parametrize(("reference", "why"), FAILURES)
def test_a_failing_reference_outside_servers_is_an_error(failing: Path, reference: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(failing, f"{ALLOWED}allowed_hosts:\n  - {json.dumps(reference)}\n")
    (problem,) = caught.value.problems
    assert (problem.line, problem.key, problem.message) == (3, "allowed_hosts[0]", f'"{reference}" {why}')
    assert problem.hint
    assert "hunter2" not in str(caught.value)


def test_a_failing_reference_inside_a_server_skips_that_server_only(failing: Path) -> None:
    (failing / "records").mkdir()
    (failing / "records" / "c.yaml").write_text("command: x\nallowed_tools: ['*']\nenv: {T: '${file:none}'}\n")
    servers = {
        "a": {"command": "x", "env": {"T": "${file:none}", "U": "${UNSET}", "V": "${file:none}"}},
        "b": {"command": "y", "env": {"T": "${file:token}"}},
    }
    loaded = read(failing, json.dumps({"servers": servers, "registry_dir": "records"}))
    assert list(loaded.root.servers) == ["b"]
    assert loaded.root.servers["b"].env == {"T": "from-file"}
    why = "${file:none} cannot be opened (No such file or directory)"
    assert [(gone.server, gone.reason, gone.detail) for gone in loaded.skipped] == [
        ("a", "secret_missing", f"{why}, ${{UNSET}} is not set"),
        ("c", "secret_missing", why),
    ]
    assert failing / "none" in loaded.watch  # so that the server is served as soon as its secret is available
    records = {name: record.skip_detail for name, record in build_plan(loaded).registry.records.items()}
    assert records["c"] == why


def test_commands_are_not_run_unless_allowed(folder: Path) -> None:
    command = script(folder, "open('ran', 'w')")
    for more in ("", "secrets: {allow_command: false}\n"):
        with raises_problem("allowed_hosts[0]", "allow_command"):
            hosts(folder, command, more)
    assert not (folder / "ran").exists()


def test_a_secret_command_that_does_not_end_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "COMMAND_TIMEOUT_S", 0.5)
    silent = script(folder, "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)")
    with raises_problem("allowed_hosts[0]", "0.5 s"):
        hosts(folder, silent, ALLOWED)
    closed = script(folder, "import os, time; os.close(1); time.sleep(600)")
    with raises_problem("allowed_hosts[0]", "0.5 s"):
        hosts(folder, closed, ALLOWED)


def test_a_blocked_keyring_times_out_and_is_retried_after_it_returns(
    folder: Path, keyring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading waits once for all references, and leaves one thread behind, regardless of how often it is repeated."""
    monkeypatch.setattr(sources, "KEYRING_TIMEOUT_S", 0.1)
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            read(folder, "allowed_hosts: ['${keyring:waiting/ann}', '${keyring:a/b/ann}', '${keyring:waiting/bob}']\n")
        text = [problem.message for problem in caught.value.problems]
        assert len(text) == 3
        assert all("is in a keyring that did not respond within 0.1 s" in one for one in text)
        assert "unlock the keyring" in caught.value.problems[0].hint
    module = sys.modules["keyring"]
    assert module.asked == ["waiting"]
    assert threading.active_count() == before + 1
    module.opened.set()
    (stuck,) = [thread for thread in threading.enumerate() if thread.name == "keyring"]
    stuck.join(60)
    monkeypatch.setattr(sources, "KEYRING_TIMEOUT_S", 60)
    assert hosts(folder, "${keyring:a/b/ann}") == ("from-keyring",)


def test_without_the_package_the_error_names_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with raises_problem("allowed_hosts[0]", "taskgate[keyring]"):
        hosts(folder, "${keyring:a/ann}")
