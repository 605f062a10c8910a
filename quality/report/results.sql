-- Grain: one row per result of the last check of each partition.
-- Input: rows of quality_results that match {where}. A failed check whose failing rows were all moved to rejects is
-- quarantined.
WITH dated AS (
  SELECT *, max(ts) OVER (PARTITION BY "table", partition_date) AS last_ts
  FROM quality_results
  WHERE {where}
), results AS (
  SELECT "table", partition_date, check_id, "column", severity, rows_checked, rows_failed, quarantined_rows,
    observed, message, table_version, suite, files_sha256, ts, status, on_fail,
    concat(check_id, ' ', coalesce("column", '')) AS check_name,
    CASE WHEN status = 'failed' AND rows_failed > 0 AND quarantined_rows >= rows_failed
      THEN 'quarantined' ELSE status END AS state
  FROM dated
  WHERE ts = last_ts
)
