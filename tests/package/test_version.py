"""The version that ranklake prints names the commit it was made of, wherever that is known."""

import json
import subprocess
from pathlib import Path

import pytest

from ranklake.cli import run
from ranklake.version import version_text

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_names_its_commit(capsys):
    """An editable installation is as new as its checkout."""
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        pytest.skip("not a checkout of git")
    assert run(["--version"]) == 0
    assert f"(commit {head.stdout.strip()[:12]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ({"vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef" * 2}}, " (commit 0123456789ab)"),
        ({"archive_info": {}}, ""),
        (None, ""),
    ],
)
def test_an_installation_names_the_commit_that_pip_noted(noted, expected, tmp_path, monkeypatch):
    """From a repository it is known; from an archive or an index it is not."""
    info = tmp_path / "ranklake-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ranklake\nVersion: 9.9\n")
    if noted is not None:
        (info / "direct_url.json").write_text(json.dumps({"url": "https://example.org/ranklake", **noted}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("ranklake.__version__", "9.9", raising=False)
    assert version_text() == f"9.9{expected}"
