-- Grain: one row per table, check and partition date whose last result is a failure that alarms and names runs, but for
-- those whose rows were all taken out. Input: quality_results.
SELECT "table", "column", check_id, severity, partition_date, rows_failed, runs
FROM (
  SELECT "table", "column", check_id, severity, status, partition_date, rows_failed, quarantined_rows, runs, row_number() OVER (
    PARTITION BY "table", check_id, "column", partition_date ORDER BY ts DESC, check_run DESC
  ) AS place
  FROM quality_results
)
WHERE place = 1 AND status = 'failed' AND severity IN ('critical', 'error') AND runs IS NOT NULL
  AND coalesce(quarantined_rows, 0) < rows_failed
ORDER BY partition_date, "table", check_id, "column"
