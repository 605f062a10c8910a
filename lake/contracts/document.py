"""A YAML file of contracts or metrics, whose errors are `ContractError` with the line."""

from pathlib import Path

from ranklake.lake.contracts.errors import ContractError
from ranklake.operator_files import KeyPath, OperatorFile

__all__ = ["Document", "KeyPath"]


class Document(OperatorFile):
    """A file of which errors are `ContractError`."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        super().__init__(path, text, error=ContractError)
