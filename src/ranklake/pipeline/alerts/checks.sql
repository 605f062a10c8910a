-- Grain: one row per check and partition of the last month whose last result is not sound. Input: quality_results.
SELECT "table", check_id, "column", partition_date, severity, status, rows_failed, message
FROM (
  SELECT *, row_number() OVER (
    PARTITION BY "table", check_id, "column", partition_date ORDER BY ts DESC, check_run DESC
  ) AS place
  FROM quality_results
  WHERE partition_date >= {month_ago} OR partition_date IS NULL
)
WHERE place = 1 AND status IN ('failed', 'errored')
ORDER BY severity, partition_date DESC, "table", check_id, "column"
LIMIT {most}
