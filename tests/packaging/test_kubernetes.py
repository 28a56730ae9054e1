"""The manifests of deploy/kubernetes: valid by the published schemas, consistent with each other and with the gateway."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness.absent import HOME, find_program

from taskgate.config.load import load
from taskgate.core.settings.gateway_file import GatewayFile

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
KUBERNETES_VERSIONS = ("1.34", "1.37")
DEADLINE_S = 120
NAME = {"app.kubernetes.io/name": "taskgate"}


def manifests() -> list[Path]:
    """All files with objects of Kubernetes; kustomizations and the configuration of the gateway are not sent to it."""
    return [path for path in sorted(FOLDER.rglob("*.yaml")) if path.name not in ("kustomization.yaml", "taskgate.yaml")]


def read(path: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / path).read_text())
    return document


def container() -> dict[str, Any]:
    (only,) = read("base/deployment.yaml")["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.mark.peers("deployment")
@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_manifests_are_valid_by_the_published_schemas(version: str) -> None:
    program = [str(HOME / "deployment" / "bin" / "kubernetes-validate"), "--strict", "-k", version]
    done = subprocess.run([*program, *map(str, manifests())], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed") == len(manifests())


def test_kustomizations_list_every_manifest() -> None:
    base = read("base/kustomization.yaml")["resources"]
    assert sorted(base) == sorted(path.name for path in manifests() if path.parent.name == "base")
    example = read("example/kustomization.yaml")
    assert "../base" in example["resources"]
    listed = [name for name in example["resources"] if name != "../base"] + example["configMapGenerator"][0]["files"]
    assert all((FOLDER / "example" / name).is_file() for name in listed)
    assert [image["name"] for image in example["images"]] == [container()["image"]]
    assert "secret.example.yaml" not in listed, "an example of a secret must not be applied"


def rendered(folder: Path) -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k` would send."""
    program = str(find_program("kubectl"))
    done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.peers("kubectl")
def test_kustomize_renders_the_example() -> None:
    objects = {document["kind"]: document for document in rendered(FOLDER / "example")}
    assert len(objects) == len(read("base/kustomization.yaml")["resources"]) + 2, (
        "a namespace and a map of files are added"
    )
    named = objects.pop("Namespace")["metadata"]["name"]
    assert {document["metadata"]["namespace"] for document in objects.values()} == {named}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    image = read("example/kustomization.yaml")["images"][0]
    assert [one["image"] for one in pod["containers"]] == [f"{image['newName']}:{image['newTag']}"]
    (mounted,) = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    assert mounted == objects["ConfigMap"]["metadata"]["name"] != "taskgate", "the name has a hash of the content"
    assert objects["ConfigMap"]["data"]["taskgate.yaml"] == (FOLDER / "example" / "taskgate.yaml").read_text()


@pytest.mark.peers("kubectl", "deployment")
def test_rendered_objects_are_valid_by_the_published_schema(tmp_path: Path) -> None:
    files = []
    for document in rendered(FOLDER / "example"):
        files.append(tmp_path / f"{document['kind']}.yaml")
        files[-1].write_text(yaml.safe_dump(document))
    program = [str(HOME / "deployment" / "bin" / "kubernetes-validate"), "--strict", "-k", KUBERNETES_VERSIONS[-1]]
    done = subprocess.run([*program, *map(str, files)], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_objects_select_the_pods_of_the_deployment() -> None:
    deployment = read("base/deployment.yaml")["spec"]
    assert deployment["template"]["metadata"]["labels"] == deployment["selector"]["matchLabels"] == NAME
    assert read("base/service.yaml")["spec"]["selector"] == NAME
    assert read("base/poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"] == NAME
    assert read("base/networkpolicy.yaml")["spec"]["podSelector"]["matchLabels"] == NAME
    target = read("base/horizontalpodautoscaler.yaml")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", read("base/deployment.yaml")["metadata"]["name"])


def test_pods_are_allowed_by_the_restricted_pod_security_standard() -> None:
    """Written from the published standard: the schemas contain no such rules."""
    pod = read("base/deployment.yaml")["spec"]["template"]["spec"]
    own = container()["securityContext"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"] > 0) == (True, True)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all(volume.keys() - {"name"} <= {"configMap", "emptyDir", "secret"} for volume in pod["volumes"])
    labels = read("example/namespace.yaml")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_user_of_the_pod_is_the_user_of_the_image() -> None:
    image = (FOLDER.parent / "Containerfile").read_text()
    user = read("base/deployment.yaml")["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}" in image
    assert {mount["mountPath"] for mount in container()["volumeMounts"]} >= {"/etc/taskgate", "/var/lib/taskgate"}


def environment(folder: Path) -> dict[str, str]:
    """The variables that the container gets from the pod and the secret."""
    secret = read("example/secret.example.yaml")["stringData"]
    fields = {entry["name"]: "10.1.2.3" for entry in container()["env"]}
    digests = {name: "ab" * 31 + f"{number:02}" for number, name in enumerate(secret) if name.endswith("_SHA256")}
    return {**secret, **digests, **fields, "HOME": str(folder), "TASKGATE_STATE_DIR": str(folder)}


def configuration(folder: Path) -> GatewayFile:
    return load(FOLDER / "example" / "taskgate.yaml", environment(folder)).root


def test_configuration_is_valid_with_the_variables_of_the_pod(tmp_path: Path) -> None:
    root = configuration(tmp_path)
    assert root.store is not None
    assert root.store.url.startswith("postgresql://")
    assert root.listen.internal == "10.1.2.3:7468"
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {"http": root.listen.port, "internal": 7468}


def test_grace_period_covers_removal_of_the_address_and_drain(tmp_path: Path) -> None:
    pod = read("base/deployment.yaml")["spec"]["template"]["spec"]
    pause = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = configuration(tmp_path).limits.drain_timeout
    assert pod["terminationGracePeriodSeconds"] >= pause + drain + 5


def test_probes_use_declared_routes_with_an_accepted_host(tmp_path: Path) -> None:
    from taskgate.inbound.http.site import PROBE_ROUTES

    known = {route.path for route in PROBE_ROUTES}
    probes = [container()[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["path"] for probe in probes} <= known
    assert all(probe["httpHeaders"] == [{"name": "Host", "value": "127.0.0.1"}] for probe in probes)
    assert "10.1.2.3" in configuration(tmp_path).allowed_hosts, "Prometheus sends the address of the pod"


def test_autoscaler_uses_a_documented_metric() -> None:
    spec = read("base/horizontalpodautoscaler.yaml")["spec"]
    documented = (FOLDER.parents[1] / "docs" / "metrics.md").read_text()
    assert all(f"`{metric['pods']['metric']['name']}`" in documented for metric in spec["metrics"])
    assert spec["minReplicas"] == read("base/deployment.yaml")["spec"]["replicas"]


def test_network_policy_opens_the_ports_of_the_container() -> None:
    rules = read("base/networkpolicy.yaml")["spec"]["ingress"]
    opened = {port["port"] for rule in rules for port in rule["ports"]}
    assert opened == {port["name"] for port in container()["ports"]}
    (internal,) = [rule for rule in rules if rule["ports"][0]["port"] == "internal"]
    assert internal["from"] == [{"podSelector": {"matchLabels": NAME}}]


@pytest.mark.peers("deployment")
def test_validation_notices_a_misspelled_field(tmp_path: Path) -> None:
    broken = read("base/deployment.yaml")
    broken["spec"]["template"]["spec"]["terminationGraceSeconds"] = 1
    (tmp_path / "broken.yaml").write_text(json.dumps(broken))
    program = [str(HOME / "deployment" / "bin" / "kubernetes-validate"), "--strict"]
    done = subprocess.run([*program, str(tmp_path / "broken.yaml")], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode != 0
