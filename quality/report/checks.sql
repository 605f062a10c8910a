-- Grain: one row per check of a table. Input: results. rows_checked and rows_failed are summed over partitions.
SELECT "table", check_id, "column", severity,
  count(*) AS partitions,
  sum(CASE WHEN state = 'failed' THEN 1 ELSE 0 END) AS partitions_failed,
  sum(CASE WHEN state = 'errored' THEN 1 ELSE 0 END) AS partitions_errored,
  sum(CASE WHEN state = 'quarantined' THEN 1 ELSE 0 END) AS partitions_quarantined,
  sum(CASE WHEN state = 'skipped' THEN 1 ELSE 0 END) AS partitions_skipped,
  sum(rows_checked) AS rows_checked,
  sum(rows_failed) AS rows_failed,
  sum(quarantined_rows) AS rows_quarantined,
  min(CASE WHEN state IN ('failed', 'errored') THEN partition_date END) AS first_unsound,
  max(CASE WHEN state IN ('failed', 'errored') THEN partition_date END) AS last_unsound,
  last_value(message ORDER BY partition_date) FILTER (WHERE state IN ('failed', 'errored', 'quarantined')) AS message,
  last_value(observed ORDER BY partition_date) FILTER (WHERE state IN ('failed', 'errored')) AS observed
FROM results
GROUP BY "table", check_id, "column", severity
ORDER BY "table", check_id, "column", severity
