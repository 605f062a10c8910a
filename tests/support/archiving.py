"""What tests of archives do again and again."""

from pathlib import Path

from retaining import CONTRACTS, TODAY, agree, carry_out, plan

from ranklake.retention.policies.policies import load_policies
from ranklake.retention.policies.read import PACKAGED

_MORE = """version: 1
owner: me
basis: law
review: 2999-01-01
rules:
"""
STEPS = "cold: {where: {table: steps}, archive: {after_days: 30, to: TO}, reason: rarely read}"


def policies_in(folder, *rules, to=None):
    """Write the packaged policies and further rules, and return them; TO in a rule is the place of archives."""
    place = folder / "policies"
    place.mkdir(exist_ok=True)
    (place / "defaults.yaml").write_text((PACKAGED / "defaults.yaml").read_text())
    lines = "".join(f"  {rule}\n" for rule in rules)
    (place / "more.yaml").write_text(_MORE + lines.replace("TO", str(to or folder / "archive")))
    return load_policies(CONTRACTS, place)


def archived(site, found, today=TODAY):
    """Plan, approve and apply what is due; return the items."""
    made = plan(site, today, found)
    agree(site, made.name)
    carry_out(site, made.name, today, found)
    return made.items


def data_files(place):
    """Return the data files of an archive."""
    return sorted(Path(place).rglob("*.parquet"))
