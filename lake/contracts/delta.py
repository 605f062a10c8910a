"""Delta settings that follow from a contract: table properties, and the columns that may have statistics."""

from typing import Final

from ranklake.lake.contracts.model import Contract

# Long enough to read a table as of last month, and to tell for how long upkeep is late with what was removed.
LOG_RETENTION: Final = "interval 30 days"
DELETED_FILE_RETENTION: Final = "interval 14 days"

CHECKPOINT_EVERY: Final = 20
"""Commits after which a checkpoint is worth its bytes: whoever opens the table reads that many small files more."""

STATISTICS_PROPERTY: Final = "delta.dataSkippingStatsColumns"
TARGET_FILE_PROPERTY: Final = "delta.targetFileSize"
TARGET_FILE_BYTES: Final = 128 * 2**20
"""What small files are merged up to; a table's own property says otherwise."""


def statistics_columns(contract: Contract) -> tuple[str, ...]:
    """Return the columns whose minimum and maximum may stand in the Delta log.

    Operational columns alone: the log outlives the rows, so a personal value in it would survive its erasure. JSON text
    and lists are left out, since their order means nothing; decimals, which the log's JSON would round; and partition
    columns, whose value is in the path.
    """
    return tuple(
        column.name
        for column in contract.columns
        if column.class_ == "operational"
        and column.format != "json"
        and column.type not in {"int64_list", "decimal"}
        and column.name not in contract.partition
    )


def table_configuration(contract: Contract) -> dict[str, str]:
    """Return the Delta table properties.

    Column mapping is never named here: with it pyarrow readers return NULLs without a word. Deletion vectors are off
    because several readers lack them.
    """
    return {
        "delta.checkpointInterval": str(CHECKPOINT_EVERY),
        STATISTICS_PROPERTY: ",".join(statistics_columns(contract)),
        "delta.deletedFileRetentionDuration": DELETED_FILE_RETENTION,
        "delta.enableDeletionVectors": "false",
        "delta.logRetentionDuration": LOG_RETENTION,
        TARGET_FILE_PROPERTY: str(TARGET_FILE_BYTES),
    }
