"""`make container`: builds the image of deploy/Containerfile with podman, runs it as compose.yaml would, and asks it for a tool.

Where no image registry answers, the base is made by debootstrap (needs root and a few minutes; it is kept
as an image for the next time).
What cannot be tried here is reported, with the command that installs what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN_BASE = "localhost/python-base"
IMAGE = "localhost/taskgate-tried"
SUITE = "bookworm"
CERTIFICATES = Path("/etc/ssl/certs")
DOWNLOAD_MB = 150
BUILD_SECONDS = 1800
READY_SECONDS = 120
DEMO = """\
auth: none
servers:
  demo: {command: /opt/taskgate/bin/python, args: ["-m", "taskgate.demo.files"]}
"""
# Inside another container the runtime may not raise its limits, so it is limited to what is certainly allowed.
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")


def main() -> int:
    if shutil.which("podman") is None:
        print("ABSENT  podman: apt-get install podman runc debootstrap (the image was NOT built)")
        return 0
    base = found_base()
    if base is None:
        print(
            "ABSENT  a base image: no registry answers, and debootstrap as root is not to be had (the image was NOT built)"
        )
        return 0
    if (reason := runtime_problem(base)) is not None:
        print(f"ABSENT  a container runtime that works here: {reason} (the image was NOT built)")
        return 0
    build(base)
    with tempfile.TemporaryDirectory() as folder:
        return try_image(Path(folder))


def found_base() -> str | None:
    """The base that the file names, where a registry has it; else one that debootstrap made."""
    named = next(
        line.split("=", 1)[1]
        for line in (ROOT / "deploy/Containerfile").read_text().splitlines()
        if line.startswith("ARG BASE=")
    )
    if podman("image", "exists", OWN_BASE, check=False).returncode == 0:
        return OWN_BASE
    if podman("pull", "--quiet", named, check=False, seconds=120).returncode == 0:
        return named
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        return None
    print(f"no registry answers: making a base of Debian {SUITE} with debootstrap (some minutes)", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        packages = "--include=python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", packages, SUITE, folder)
        tar = subprocess.Popen(
            ["tar", "-C", folder, "-c", "--exclude=./var/cache/apt/archives/*.deb", "."], stdout=subprocess.PIPE
        )
        subprocess.run(["podman", "import", "-", OWN_BASE], stdin=tar.stdout, check=True, timeout=BUILD_SECONDS)
    return OWN_BASE


def runtime_problem(base: str) -> str | None:
    """Why containers cannot be started on this machine, or None: crun refuses mixed control groups, for example."""
    done = podman("run", "--rm", "--network", "host", *LIMITS, base, "/bin/true", check=False, seconds=120)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["podman run failed"])[-1]


def build(base: str) -> None:
    """From the committed files only, as after a fresh clone. In `docker` format, because OCI images have no health check."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        words = ["build", "--quiet", "--format", "docker", "--network", "host", *LIMITS]
        # A machine behind an inspecting proxy trusts more certificates than the base does.
        words += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"] if CERTIFICATES.is_dir() else []
        podman(*words, "--build-arg", f"BASE={base}", "-f", "deploy/Containerfile", "-t", IMAGE, ".", cwd=Path(folder))
        packed = Path(folder) / "packed.tar"
        podman("save", "--format", "oci-archive", "-o", str(packed), IMAGE)
        download = packed.stat().st_size
    size = int(podman("image", "inspect", IMAGE, "--format", "{{.Size}}").stdout)
    below = int(podman("image", "inspect", base, "--format", "{{.Size}}").stdout)
    print(f"built    {IMAGE}: {size / 1e6:.0f} MB, {(size - below) / 1e6:.0f} MB of it over the base")
    print(f"packed   {download / 1e6:.0f} MB to download with its base (limit {DOWNLOAD_MB})")
    if download > DOWNLOAD_MB * 1e6:
        sys.exit(f"the image is larger than {DOWNLOAD_MB} MB")


def try_image(folder: Path) -> int:
    settings = folder / "taskgate.yaml"
    settings.write_text(DEMO)
    settings.chmod(0o644)
    port = free_port()
    name = f"taskgate-tried-{os.getpid()}"
    words = [
        "run",
        "--detach",
        "--name",
        name,
        "--network",
        "host",
        "--read-only",
        "--cap-drop",
        "ALL",
        "--tmpfs",
        "/tmp",
        *LIMITS,
    ]
    words += ["--security-opt", "no-new-privileges", "--volume", f"{settings}:/etc/taskgate/taskgate.yaml:ro"]
    podman(*words, IMAGE, "serve", "-c", "/etc/taskgate/taskgate.yaml", "--port", str(port))
    try:
        wait_until_ready(name, port)
        who = podman("exec", name, "id", "-u").stdout.strip()
        health = podman("image", "inspect", IMAGE, "--format", "{{json .HealthCheck}}").stdout.strip()
        tools = listed_tools(port)
        stopped = podman("stop", "--time", "30", name, check=False, seconds=60).returncode
    finally:
        print(podman("logs", name, check=False).stdout, end="")
        podman("rm", "--force", name, check=False)
    facts = {"user": who, "health check": health not in ("null", ""), "tools": len(tools), "stopped": stopped == 0}
    print("tried   ", json.dumps(facts))
    return 0 if who == "10001" and facts["health check"] and tools and stopped == 0 else 1


def wait_until_ready(name: str, port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(
        f"the container was not ready within {READY_SECONDS} s:\n" + podman("logs", name, check=False).stderr
    )


def listed_tools(port: int) -> list[str]:
    """One stateless question: which tools are there?"""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Mcp-Method": "tools/list",
    }
    headers["MCP-Protocol-Version"] = "2026-07-28"
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        result = json.loads(answer.read())["result"]
    return [tool["name"] for tool in result["tools"]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def podman(
    *words: str, check: bool = True, seconds: float = BUILD_SECONDS, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """runc where it is: crun refuses machines that still have both kinds of control groups."""
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    done = subprocess.run(
        ["podman", *runtime, *words], capture_output=True, text=True, timeout=seconds, cwd=cwd, check=False
    )
    if check and done.returncode:
        raise SystemExit(f"podman {words[0]} failed:\n{done.stderr[-4000:]}")
    return done


def run(*words: str) -> None:
    subprocess.run(words, check=True, timeout=BUILD_SECONDS, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
