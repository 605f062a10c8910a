"""The version of ranklake, with its commit if known."""

import importlib.metadata
import json
import subprocess
from pathlib import Path

import ranklake

_GIT_S = 5.0


def version_text() -> str:
    """Return the version, with the commit in brackets; ``, changed`` if files of the checkout differ from it."""
    commit = _commit()
    return f"{ranklake.__version__} ({commit})" if commit else ranklake.__version__


def _commit() -> str:
    """Return the commit of ``pip install git+…``, else of an editable installation's checkout; else empty."""
    try:
        direct = json.loads(importlib.metadata.distribution("ranklake").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    if noted := direct.get("vcs_info", {}).get("commit_id"):
        return f"commit {noted[:12]}"
    if not direct.get("dir_info", {}).get("editable"):
        return ""
    place = Path(__file__).parent
    head = _git(place, "rev-parse", "--short=12", "HEAD")
    changed = ", changed" if head and _git(place, "status", "--porcelain", "--untracked-files=no") else ""
    return f"commit {head}{changed}" if head else ""


def _git(place: Path, *arguments: str) -> str:
    command = ["git", "-C", str(place), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
