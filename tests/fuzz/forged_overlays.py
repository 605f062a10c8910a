"""Overlays that a lake keeps, forged: texts and names that whoever has the bucket's keys can put into its contracts."""

import json

from own_table import TABLE

CODE = "import pathlib\npathlib.Path({there!r}).write_text('')\nMIGRATION = {{}}\n"
DEEP = ("[", "{a: ", "- ", "? ", "[{", "!!seq [", "&a [")


def forge(rng, lake, outside):
    """Leave an overlay that nobody wrote: its next version, or the one that is there."""
    name = rng.choice(["rollouts.yaml", "x.yaml", "metrics.yaml", "checks.yaml"])
    files = {"rollouts.yaml": TABLE}
    kind = rng.choice([0, 0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8])
    if kind == 0:
        files[name] = rng.choice(DEEP) * rng.choice([10, 70, 100_000, 100_000])
    elif kind == 1:  # nine to the ninth words from a thousand bytes
        lines = [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}' if at else 'x'] * 9)}]\n" for at in range(9)]
        files[name] = "".join(lines) + (TABLE if rng.random() < 0.5 else "")
    elif kind == 2:
        at = rng.randrange(len(TABLE))
        files[name] = (
            TABLE[:at] + rng.choice(["\ud800", "\ud800", "\x00", "\u2028", "\ufeff", "\x85", "\U0001f4a5"]) + TABLE[at:]
        )
    elif kind == 3:
        at = rng.randrange(len(TABLE))
        files[name] = TABLE[:at] + TABLE[at + rng.randrange(200) :]
    elif kind == 4:
        files[f"rollups/{rng.choice(['rollouts', 'x', '../x'])}.sql"] = rng.choice(
            [
                "(" * 100_000,
                "SELECT * FROM rollouts",
                "WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT 1 FROM a) SELECT 1",
                "",
            ]
        )
    elif kind == 5:
        there = str(outside / "came")
        files[f"migrations/10001_{rng.choice(['x', 'x/y', ''])}.py"] = CODE.format(there=there)
    elif kind == 6:
        files[f"snapshots/rollouts.v{rng.choice([0, 1, 2, 10**9])}.json"] = rng.choice(
            ["[" * 100_000, "{}", "null", TABLE]
        )
    elif kind == 7:
        files[f"{rng.choice(['../../', '/', '..', f'../../{outside.name}/', '.', ''])}{name}"] = TABLE
    else:
        files["migrations/10001_x.yaml"] = rng.choice(
            ["[" * 100_000, "number: 10001", "{}", "table: rollouts\nsteps: [1]"]
        )
    facts = {"format": rng.choice([1, 1, 1, 1, 1, 1, 1, 2, "1", None]), "files": files}
    folder = lake / "contracts"
    folder.mkdir(exist_ok=True)
    (folder / f"{rng.choice([1, 1, 1, 1, 1, 2, 10**9]):010}.json").write_text(json.dumps(facts))
