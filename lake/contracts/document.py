"""A YAML file of contracts, metrics or migrations, whose errors are `ContractError` with the line."""

from pathlib import Path

from ranklake.file_formats import KeyPath, SafeLoader, hold_text, is_text
from ranklake.lake.contracts.errors import ContractError
from ranklake.operator_files import OperatorFile

__all__ = ["Document", "KeyPath", "SafeLoader", "hold_text", "is_text"]


class Document(OperatorFile):
    """A file of which errors are `ContractError`."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        super().__init__(path, text, error=ContractError)
