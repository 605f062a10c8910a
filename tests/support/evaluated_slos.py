"""Objectives that were evaluated on some days, so that their page has all its parts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from ranklake.insight.slo.document import read_text
from ranklake.insight.slo.report import evaluate_all, record, slo_state

END = datetime(2026, 3, 20, 12, tzinfo=UTC)
_TEXT = """apiVersion: openslo/v1
kind: SLO
metadata: {{name: {name}, labels: {{owner: ml-platform}}}}
spec:
  description: Nine of ten <b>are saved.
  indicator: {{spec: {{ratioMetric: {{rawType: success, raw: {{metricSource: {{spec: {{sql: "{sql}"}}}}}}}}}}}}
  timeWindow: [{{duration: 28d, isRolling: true}}]
  budgetingMethod: Occurrences
  objectives: [{{target: 0.9}}]
"""
_EVENTS = """SELECT * FROM (VALUES (TIMESTAMP '2026-03-18 10:00:00', '<b>west', 9, 10),
  (TIMESTAMP '2026-03-19 10:00:00', '<b>west', 5, 10), (TIMESTAMP '2026-03-20 11:59:00', 'east', 1, 10))
  AS t(ts, subject, good, total)"""


def evaluated(lake):
    """Evaluate a missed, a met and an unmeasured objective at the end of three days; return what the page shows."""
    queries = {
        "saves": _EVENTS,
        "met": "SELECT TIMESTAMP '2026-03-18 10:00:00' AS ts, '' AS subject, 1 AS good, 1 AS total",
        "unmeasured": "SELECT ts, run AS subject, 1 AS good, 1 AS total FROM steps WHERE FALSE",
    }
    texts = {name: _TEXT.format(name=name, sql=" ".join(sql.split())) for name, sql in queries.items()}
    slos = {name: read_text(Path(f"{name}.yaml"), text) for name, text in texts.items()}
    for back in (2, 1, 0):
        record(lake.tables, evaluate_all(lake, slos.values(), END - timedelta(days=back)))
    return slo_state(lake, slos)
