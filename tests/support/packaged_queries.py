"""Queries that the project hands out: the cookbook's, and those of Grafana's dashboards, filled in as Grafana does."""

import json
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECIPES = dict(
    re.findall(
        r"^### (.+?)\n(?:(?!^### ).)*?^```sql\n(.*?)^```",
        (DOCS / "cookbook.md").read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
)
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((DOCS / "grafana").glob("*.json"))}
_FILLED = {
    r"\$__timeFilter\((\w+)\)": r"\1 BETWEEN TIMESTAMP '2026-02-01T00:00:00' AND TIMESTAMP '2026-04-01T00:00:00'",
    r"\$\{__from:date:YYYY-MM-DD\}": "2026-02-01",
    r"\$\{__to:date:YYYY-MM-DD\}": "2026-04-01",
    r"\$\{run:sqlstring\}": "'gpt-1'",
}
ASKED = [
    (name, title, text)
    for name, board in BOARDS.items()
    for title, text in [
        *(
            (one["title"], target["rawSql"])
            for one in board["panels"]
            for target in one["targets"]
            if "rawSql" in target
        ),
        *((one["name"], one["query"]) for one in board["templating"]["list"] if one["type"] == "query"),
    ]
]


def filled(text):
    """Return a query as Grafana sends it."""
    for pattern, value in _FILLED.items():
        text = re.sub(pattern, value, text)
    assert "$" not in text
    return text
