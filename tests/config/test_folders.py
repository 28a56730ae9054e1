"""Where files are read and stored: as the XDG base directory specification defines it, unless our own variables are set."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from taskgate.folders import find_config, socket_folder, state_folder, user_config


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/h"}, "/h/.local/state/taskgate"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/s"}, "/s/taskgate"),
        ({"HOME": "/h", "XDG_STATE_HOME": "relative"}, "/h/.local/state/taskgate"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/s", "TASKGATE_STATE_DIR": "/t"}, "/t"),
    ],
)
def test_state_folder_follows_the_environment(environment: dict[str, str], folder: str) -> None:
    assert state_folder(environment) == folder


def test_user_configuration_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"HOME": "/h", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert user_config({"HOME": "/h"}) == "/h/.config/taskgate/taskgate.yaml"
    assert find_config(None, environment) is None
    own = tmp_path / "config/taskgate/taskgate.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("schema: 1\n")
    assert find_config(None, environment) == str(own)
    (tmp_path / "taskgate.yaml").write_text("schema: 1\n")
    assert find_config(None, environment) == "taskgate.yaml"
    assert find_config(None, {**environment, "TASKGATE_CONFIG": "/named.yaml"}) == "/named.yaml"


def test_a_socket_goes_to_the_users_runtime_folder_if_only_they_can_open_it(tmp_path: Path) -> None:
    # The path of a socket may have about a hundred bytes; the folders of tests can exceed that.
    runtime, state = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp")), tmp_path / "s"
    state.mkdir()
    found = socket_folder({"XDG_RUNTIME_DIR": str(runtime)}, str(state))
    assert found == str(runtime / "taskgate")
    assert stat.S_IMODE(os.stat(found).st_mode) == 0o700
    runtime.chmod(0o755)
    assert socket_folder({"XDG_RUNTIME_DIR": str(runtime)}, str(state)) != found
    shutil.rmtree(runtime)
