-- Grain: one row per partition of a table that was checked. Input: results.
SELECT "table", partition_date,
  count(*) AS checks,
  sum(CASE WHEN state = 'failed' AND severity IN ('critical', 'error') THEN 1 ELSE 0 END) AS checks_failing,
  sum(CASE WHEN state = 'failed' AND severity NOT IN ('critical', 'error') THEN 1 ELSE 0 END) AS checks_warning,
  sum(CASE WHEN state = 'errored' THEN 1 ELSE 0 END) AS checks_errored,
  max(rows_checked) AS rows_checked,
  coalesce(sum(CASE WHEN state = 'failed' THEN rows_failed END), 0) AS rows_failed,
  coalesce(sum(quarantined_rows), 0) AS rows_quarantined,
  max(table_version) AS table_version,
  max(suite) AS suite,
  max(files_sha256) AS files_sha256,
  max(ts) AS checked_at
FROM results
GROUP BY "table", partition_date
ORDER BY "table", partition_date
