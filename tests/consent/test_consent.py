"""What is bound by consent, where it is recorded, and which file a client's program uses."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskgate.cli.root import build_app
from taskgate.config import load_text
from taskgate.config.leaving import NotAllowed
from taskgate.config.load import leaving_of_file, load, load_again
from taskgate.consent import Allowed, ClientFile, Consent, NotAllowedHere, file_for_client
from taskgate.core.settings.approval import Workflow
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.section import keys_of
from taskgate.core.settings.servers import Server

SERVER = "servers:\n  a: {command: prog, args: [x], cwd: d, env: {K: v}}\n"
ADDRESS = 'servers:\n  a: {url: "https://h.example/mcp", headers: {X: "${A_VARIABLE:-none}"}}\n'


class Folder:
    """A working folder and a user's home, with the consent for the file in it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "work" / "taskgate.yaml"
        self.file.parent.mkdir()
        self.own = folder / "home" / ".config" / "taskgate" / "taskgate.yaml"
        self.state = folder / "state"
        self.environment = {"HOME": str(folder / "home"), "TASKGATE_STATE_DIR": str(self.state)}
        self.allowed = Allowed(str(self.state))
        self.consent = Consent(str(self.state), str(self.file))

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def allow(self, text: str) -> None:
        self.write(text)
        self.allowed.allow(str(self.file), frozenset(item.digest for item in leaving_of_file(self.file)), 0.0)

    def is_used(self, text: str) -> bool:
        self.write(text)
        try:
            load(self.file, {}, consent=self.consent)
        except NotAllowed:
            return False
        return True

    def chosen(self, monkeypatch: pytest.MonkeyPatch, **environment: str) -> ClientFile:
        monkeypatch.chdir(self.file.parent)
        return file_for_client(None, {**self.environment, **environment})


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        SERVER.replace("prog", "other"),
        SERVER.replace("[x]", "[x, y]"),
        SERVER.replace("cwd: d", "cwd: e"),
        SERVER.replace("K: v", "K: w"),
        SERVER.replace("K: v", 'K: "${V:-v}"'),
        SERVER + "  b: {command: prog, args: [x, y]}\n",
        SERVER + "registry_dir: r\n",
        SERVER + "cedar: {policies: [p.cedar]}\n",
        SERVER + "secrets: {allow_command: true}\n",
        SERVER + 'store: {url: "sqlite:///elsewhere.db"}\n',
        SERVER + "facade: {add_server: session}\n",
        SERVER + 'approval: {default: {channels: [{type: webhook, url: "https://h.example/", secret: abc}]}}\n',
        SERVER + 'governance: {rules: [{match: "${V:-x}", action: deny}]}\n',
        SERVER + 'listen: {tls: {cert: "c.pem", key: "k.pem"}}\n',
        SERVER + "audit: {export: ~/.profile}\n",
        # Who may enter: a later edit could open the allowed programs to others.
        SERVER + 'allowed_hosts: ["*"]\n',
        SERVER + 'allowed_origins: ["https://other.example"]\n',
        SERVER + 'public_url: "https://other.example"\n',
        SERVER + "auth: {none: true}\n",
        SERVER + "auth: {anonymous: default}\n",
        SERVER + f"tokens: [{{id: x, sha256: {'a' * 64}, roles: [admin]}}]\n",
        SERVER + "people: {admin: [everyone]}\n",
        SERVER + "listen: {trusted_proxies: [127.0.0.1], client_certificate_header: X-Cert}\n",
    ],
)
def test_an_edit_of_what_leaves_the_file_needs_consent(folder: Folder, changed: str) -> None:
    (folder.file.parent / "p.cedar").write_text("permit(principal, action, resource);\n")
    folder.allow(SERVER)
    assert folder.is_used(SERVER)
    assert not folder.is_used(changed)
    folder.allow(changed)
    assert folder.allowed.digests(str(folder.file))
    assert folder.is_used(changed)


@pytest.mark.parametrize(
    "changed",
    [
        "# a note\n" + SERVER,
        SERVER.replace("  a:", "  renamed:"),
        SERVER.replace("command", "enabled: false, command"),
        SERVER.replace("command", "tags: [t], budgets: {max_concurrency: 3}, tools: {t: {class: read}}, command"),
        SERVER + "governance: {rules: [{match: 'a_*', action: deny}]}\n",
        SERVER + "approval: {default: {timeout: 3m, self_approval: true}}\n",
        SERVER + "limits: {json_depth: 40}\ntasks: {grace_ms: 10}\nlisten: {port: 1}\ntelemetry: {log_level: debug}\n",
        "servers: {}\n",
        "x-common: {a: 1}\n" + SERVER,
        "servers: {}\nmcpServers:\n  a: {command: prog, args: [x], cwd: d, env: {K: v}}\n",
    ],
)
def test_an_edit_of_anything_else_needs_none(folder: Folder, changed: str) -> None:
    folder.allow(SERVER)
    assert folder.is_used(changed)


def test_an_allowed_address_with_the_headers_of_another_is_not_allowed(folder: Folder) -> None:
    two = 'servers:\n  a: {url: "https://a.example/", headers: {X: "1"}}\n  b: {url: "https://b.example/", headers: {X: "2"}}\n'
    folder.allow(two)
    assert not folder.is_used(two.replace('X: "1"', 'X: "2"'))


def test_a_record_that_is_added_or_changed_needs_consent(folder: Folder) -> None:
    records = folder.file.parent / "r"
    records.mkdir()
    (records / "a.yaml").write_text("command: prog\n")
    folder.allow("registry_dir: r\n")
    assert folder.is_used("registry_dir: r\n")
    (records / "b.yaml").write_text("command: other\n")
    assert not folder.is_used("registry_dir: r\n")
    (records / "b.yaml").write_text("command: prog\n")
    assert folder.is_used("registry_dir: r\n")
    (records / "a.yaml").write_text('command: prog\nargs: ["x"]\n')
    assert not folder.is_used("registry_dir: r\n")


def test_records_in_a_folder_that_a_variable_names_cannot_be_allowed(folder: Folder) -> None:
    from taskgate.config import ConfigError

    folder.write('registry_dir: "${HOME}/r"\n')
    with pytest.raises(ConfigError, match="registry_dir"):
        leaving_of_file(folder.file)


def test_nothing_is_read_or_run_before_consent(folder: Folder) -> None:
    read: list[str] = []

    class Environment(dict[str, str]):
        def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
            read.append(name)
            return default

    folder.write(ADDRESS)
    with pytest.raises(NotAllowed) as refused:
        load(folder.file, Environment(), consent=folder.consent)
    assert "A_VARIABLE" not in read
    assert "taskgate allow" in str(refused.value)
    folder.allow(ADDRESS)
    load(folder.file, Environment(), consent=folder.consent)
    assert "A_VARIABLE" in read


def test_a_configuration_is_read_again_within_its_consent(folder: Folder) -> None:
    folder.allow(SERVER)
    loaded = load(folder.file, {}, consent=folder.consent)
    assert Path(folder.allowed.path) in loaded.watch
    folder.write(SERVER.replace("prog", "other"))
    with pytest.raises(NotAllowed):
        load_again(loaded, {})
    folder.allow(SERVER.replace("prog", "other"))
    assert load_again(load_again(loaded, {}), {}).root.servers["a"].command == "other"


def test_a_text_without_consent_is_loaded_as_before() -> None:
    assert load_text(SERVER).root.servers["a"].command == "prog"


def test_records_are_private_and_ignored_if_others_can_change_them(folder: Folder) -> None:
    folder.allow(SERVER)
    path = Path(folder.allowed.path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o622)
    with pytest.raises(PermissionError):
        folder.allowed.digests(str(folder.file))
    assert not folder.is_used(SERVER)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": {"/x": {"digests": 3}}}'])
def test_damaged_records_allow_nothing(folder: Folder, text: str) -> None:
    folder.allow(SERVER)
    Path(folder.allowed.path).write_text(text)
    assert not folder.is_used(SERVER)
    folder.allow(SERVER)
    assert folder.is_used(SERVER)


def test_a_client_uses_a_found_file_after_consent_only(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(SERVER)
    with pytest.raises(NotAllowedHere, match="taskgate allow"):
        folder.chosen(monkeypatch)
    folder.own.parent.mkdir(parents=True)
    folder.own.write_text(SERVER)
    chosen = folder.chosen(monkeypatch)
    assert (chosen.path, chosen.is_found) == (str(folder.own), False)
    assert "taskgate allow" in chosen.note
    folder.allow(SERVER)
    assert folder.chosen(monkeypatch) == ClientFile("taskgate.yaml", is_found=True)
    assert folder.allowed.revoke(str(folder.file))
    assert folder.chosen(monkeypatch).path == str(folder.own)
    assert not folder.allowed.revoke(str(folder.file))


def test_records_in_a_state_folder_that_the_working_folder_leads_to_allow_nothing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository could contain them."""
    folder.write(SERVER)
    Allowed(str(folder.file.parent / "state")).allow(str(folder.file), frozenset(), 0.0)
    with pytest.raises(NotAllowedHere, match="TASKGATE_STATE_DIR is not an absolute path"):
        folder.chosen(monkeypatch, TASKGATE_STATE_DIR="state")


LINKED = {
    "reference": 'servers: {a: {url: "https://h.example/mcp", headers: {X: "${file:in/link}"}}}\n',
    "reference in a record": "registry_dir: r\n",
    "key of a model": 'providers: {m: {kind: openai, base_url: "https://h.example", api_key_file: in/link, models: [{name: m}]}}\n',
    "certificate": "listen: {tls: {cert: in/link, key: in/link}}\n",
    "policy": "cedar: {policies: [in/link]}\n",
    "entities": "cedar: {entities: in/link}\n",
    "export": "audit: {export: in/link}\n",
    "store": 'store: {url: "sqlite:///in/link"}\n',
    "working folder": "servers: {a: {command: prog, cwd: in/folder}}\n",
    "records": "registry_dir: in/folder\n",
}


@pytest.mark.parametrize("key", LINKED)
def test_a_link_out_of_the_folder_is_not_followed_within_consent(folder: Folder, key: str) -> None:
    """The user has allowed a name in the folder; a link there can be changed later."""
    here, elsewhere = folder.file.parent, folder.file.parent.parent / "elsewhere"
    for made in (here / "in", here / "r", elsewhere):
        made.mkdir()
    (here / "r" / "a.yaml").write_text('url: "https://h.example/mcp"\nheaders: {X: "${file:in/link}"}\n')
    (elsewhere / "own").touch()
    (here / "in" / "own").touch()
    (here / "in" / "own folder").mkdir()
    name, inside, outside = (
        ("folder", "own folder", elsewhere) if "in/folder" in LINKED[key] else ("link", "own", elsewhere / "own")
    )
    link = here / "in" / name
    link.symlink_to(inside)
    folder.allow(LINKED[key])
    assert folder.is_used(LINKED[key])
    link.unlink()
    link.symlink_to(outside)
    assert not folder.is_used(LINKED[key])
    load(folder.file, {})


def test_a_link_of_a_folder_on_the_way_out_is_not_followed_within_consent(folder: Folder) -> None:
    (folder.file.parent / "in").symlink_to(folder.file.parent.parent)
    folder.allow(LINKED["export"])
    assert not folder.is_used(LINKED["export"])


def test_a_path_outside_of_the_folder_may_lead_through_links(folder: Folder, tmp_path: Path) -> None:
    """It is shown as it is, and the folder's authors cannot change what it leads to."""
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to("target")
    for path in ("../link", str(tmp_path / "link")):
        text = f"audit: {{export: {path}}}\n"
        folder.allow(text)
        assert folder.is_used(text)


def test_a_named_file_needs_no_consent(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(SERVER)
    assert folder.chosen(monkeypatch, TASKGATE_CONFIG="taskgate.yaml") == ClientFile("taskgate.yaml")
    assert file_for_client("taskgate.yaml", folder.environment) == ClientFile("taskgate.yaml")
    folder.file.unlink()
    assert folder.chosen(monkeypatch) == ClientFile(None)


def test_the_users_own_file_needs_no_consent_in_its_own_folder(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.own.parent.mkdir(parents=True)
    folder.own.write_text(SERVER)
    monkeypatch.chdir(folder.own.parent)
    assert file_for_client(None, folder.environment) == ClientFile("taskgate.yaml")


def test_a_link_to_an_allowed_file_needs_consent(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Relative paths of the file start at the folder of the link, so it may start another program."""
    folder.allow(SERVER)
    folder.own.parent.mkdir(parents=True)
    folder.own.write_text(SERVER)
    for target in (folder.file, folder.own):
        repository = tmp_path / f"with link to {target.parent.name}"
        repository.mkdir()
        (repository / "taskgate.yaml").symlink_to(target)
        monkeypatch.chdir(repository)
        assert file_for_client(None, folder.environment).path == str(folder.own)


def test_consent_holds_on_another_way_to_the_folder(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder.allow(SERVER)
    (tmp_path / "link").symlink_to(folder.file.parent)
    monkeypatch.chdir(tmp_path / "link")
    monkeypatch.setenv("PWD", os.path.join(str(tmp_path), "link"))
    assert file_for_client(None, folder.environment).is_found


def test_keys_that_need_no_consent_exist() -> None:
    """A key that is not named as affecting only the gateway needs consent, so the names must be right."""
    from taskgate.config import leaving

    assert set(leaving._WITHIN_SERVERS.split()) <= {*keys_of(Server), "disabled"}
    assert set(leaving._WITHIN_WORKFLOWS.split()) <= set(keys_of(Workflow))
    assert set(leaving._WITHIN_SECTIONS.split()) <= set(keys_of(GatewayFile))
    kept = set(keys_of(Server)) - set(leaving._WITHIN_SERVERS.split())
    assert kept == {"command", "args", "env", "cwd", "url", "headers", "auth"}
    assert set(keys_of(Workflow)) - set(leaving._WITHIN_WORKFLOWS.split()) == {"channels"}


@pytest.mark.parametrize("named", [False, True])
def test_a_command_that_a_person_types_uses_a_found_file_and_says_so(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    folder.write(SERVER)
    monkeypatch.chdir(folder.file.parent)
    monkeypatch.setenv("TASKGATE_STATE_DIR", str(folder.state))
    if named:
        monkeypatch.setenv("TASKGATE_CONFIG", str(folder.file))
    else:
        monkeypatch.delenv("TASKGATE_CONFIG", raising=False)
    done = CliRunner().invoke(build_app(), ["check"])
    assert done.exit_code == 0
    assert (f"Using {folder.file}" in done.stderr.splitlines()) is not named
