"""A YAML file of contracts, metrics or migrations, whose errors are `ContractError` with the line."""

from pathlib import Path
from typing import Any

import yaml

from ranklake.file_formats import KeyPath, SafeLoader, hold_text, is_text
from ranklake.lake.contracts.errors import ContractError
from ranklake.operator_files import OperatorFile

__all__ = ["Document", "KeyPath", "SafeLoader", "hold_text", "is_text", "migration_facts"]


class Document(OperatorFile):
    """A file of which errors are `ContractError`."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        super().__init__(path, text, error=ContractError)


def migration_facts(text: str) -> Any:  # noqa: ANN401 - whatever the file says
    """Return what a migration's file says. Raises `ValueError`, with what is wrong."""
    try:
        hold_text(text)
        return yaml.load(text, SafeLoader)  # noqa: S506 - safe_load(), by libyaml
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML ({type(error).__name__})") from error
