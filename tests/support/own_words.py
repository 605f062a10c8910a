"""Words that dictionaries of Parquet files hold and no row of those files has."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def words_of_no_row(folder):
    """Return, by file and column, the words of dictionaries below a folder that no row of the file has.

    Files that a test has damaged are left out.
    """
    leftovers = {}
    for path in sorted(Path(folder).rglob("*.parquet")):
        if "_delta_log" in path.parts:
            continue
        try:
            metadata = pq.read_metadata(path)
        except (OSError, pa.ArrowInvalid):
            continue
        groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
        texts = {one.path_in_schema for one in chunks if one.has_dictionary_page and one.physical_type == "BYTE_ARRAY"}
        if not texts:
            continue
        rows = pq.ParquetFile(path, read_dictionary=sorted(texts)).read(sorted(texts))
        for name in sorted(texts):
            known = {word for chunk in rows[name].chunks for word in chunk.dictionary.to_pylist()}
            if more := known - set(rows[name].to_pylist()):
                leftovers[path.name, name] = sorted(more)
    return leftovers
