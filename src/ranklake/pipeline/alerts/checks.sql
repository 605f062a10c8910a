-- Grain: one row per check that failed or was errored in the last check of its partition, if failing rows are still in
-- the table or were moved to rejects since {day_ago}. Checks that were removed from the suite are not among the last
-- results. Input: quality_results.
SELECT "table", check_id, "column", partition_date, severity, status, rows_failed, message, files_sha256, on_fail
FROM (
  SELECT *, max(ts) OVER (PARTITION BY "table", partition_date) AS last_ts
  FROM quality_results
  WHERE partition_date >= {since} OR partition_date IS NULL
)
WHERE ts = last_ts
  AND (status = 'errored' OR (status = 'failed'
    AND (coalesce(quarantined_rows, 0) < greatest(coalesce(rows_failed, 0), 1) OR ts >= {day_ago})))
ORDER BY severity, partition_date DESC, "table", check_id, "column"
LIMIT {most}
