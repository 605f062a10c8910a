"""What docs/deploy ships is valid: by the Kubernetes schemas, hadolint, systemd, and its own source."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from ranklake.cli import SUMMARIES
from ranklake.flows.deployment_file import text

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
VERSIONS = ("1.31", "1.34")


def documents(path):
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def pod_of(document):
    return document.get("spec", {}).get("template", {}).get("spec", {})


def test_prefect_yaml_is_what_the_deployments_make():
    """The file of `prefect deploy` is generated, and nobody changed it by hand."""
    assert (DEPLOY / "prefect.yaml").read_text() == text(), "make deployments"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_valid(path):
    """Every document holds under the strict schemas of an old and a new Kubernetes; unknown fields are refused."""
    for document in documents(path):
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


def test_what_is_no_manifest_is_refused():
    """The check can fail: a misspelt field does not pass."""
    (document,) = [one for one in documents(DEPLOY / "kubernetes" / "agent.yaml") if one["kind"] == "DaemonSet"]
    pod_of(document)["hostPlD"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_careful(path):
    """Containers name a version of the image, ask for resources, drop rights, and carry no secret."""
    for pod in filter(None, map(pod_of, documents(path))):
        for container in pod["containers"]:
            assert re.fullmatch(r"\S+:\d\S+", container["image"])
            assert {"requests", "limits"} <= set(container["resources"])
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            told = [one for one in container["env"] if re.search("AUTH|KEY|SECRET|PASSWORD", one["name"])]
            assert all("valueFrom" in one for one in told)


def test_the_dockerfile_passes_hadolint():
    """The linter has nothing to say. It is built only where Docker runs, by hand: see the page."""
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
@pytest.mark.slow
def test_units_start_commands_that_there_are(path):
    """ExecStart is a command of ours with options that it has; one that stops within its TimeoutStopSec."""
    (command,) = re.findall(r"^ExecStart=/opt/ranklake/bin/ranklake (\S+)", path.read_text(), re.MULTILINE)
    assert command in SUMMARIES
    told = subprocess.run(
        [sys.executable, "-m", "ranklake", command, "--help"], capture_output=True, text=True, check=True
    )
    options = re.findall(r" (--[a-z-]+)", re.findall(r"^ExecStart=.*$", path.read_text(), re.MULTILINE)[0])
    assert all(option in told.stdout for option in options)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(tmp_path, path):
    """`systemd-analyze verify` finds no unknown key and no bad value; the program is put where it can be found."""
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/ranklake/bin/ranklake", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False, timeout=60)
    ours = [line for line in done.stderr.splitlines() if path.name in line]
    assert not ours, done.stderr
