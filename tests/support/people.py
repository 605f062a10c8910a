"""Rows about people, and a rule and keys to mask them by."""

import base64

from governed import any_rows
from retaining import days_ago

from ranklake.lake.store.lake_config import MaskingSection

PEOPLE = (
    "people: {where: {table: runs, column: [user, host, git_patch, command_line]}, mask_after_days: 30, reason: enough}"
)
OLD, NEW = (base64.b64encode(bytes(range(start, start + 32))).decode() for start in (0, 32))


def with_keys(site, folder, *keys):
    path = folder / "keys"
    path.write_text("\n".join(keys))
    site.lake = site.lake.configured(masking=MaskingSection(f"file:{path}"))
    return site


def bring_runs(site, count, *, age, segment=0, run="r1", incarnation=7, rows_before=0, **columns):
    """Ingest rows of ``runs`` about people whom nothing else names."""
    told = {
        "user": [f"person-{incarnation}-{segment}-{n}" for n in range(count)],
        "host": [f"machine-{n}" for n in range(count)],
        "git_patch": [f"+ patched by person-{n}" for n in range(count)],
        "command_line": [f"train --out /home/person-{n}/out --n {n}" for n in range(count)],
        "world_size": list(range(count)),
        **columns,
    }
    rows = any_rows("runs", count, segment=segment, incarnation=incarnation, run=run, start=days_ago(age), **told)
    site.bring(rows, "runs", rows_before=rows_before)
