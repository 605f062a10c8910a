"""The overlay of docs/overlays.md, as files."""

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "overlays.md"
_BLOCK = re.compile(r"^```(?:yaml|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMES = ("steps.yaml", "rollouts.yaml", "rollout_daily.yaml", "rollups/rollout_daily.sql", "metrics.yaml")
_COMMANDS = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def documented(folder):
    """Write the page's overlay below a folder, and return it."""
    return written(folder, dict(zip(_NAMES, _texts(), strict=False)))


def mapping():
    """Return the page's mapping."""
    return _texts()[len(_NAMES)]


def commands():
    """Return the page's commands, in order, each as words."""
    blocks = _COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def _texts():
    return _BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def written(folder, files):
    """Write files (text by name) below a folder, and return it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
