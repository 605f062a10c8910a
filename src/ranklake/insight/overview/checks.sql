-- Grain: one row per table and check whose last result on a partition of the last month is not sound. Input:
-- quality_results.
SELECT "table", check_id, severity, status, count(*) AS partitions, sum(rows_failed) AS rows_failed,
  min(partition_date) AS first_date, max(partition_date) AS last_date, max(ts) AS checked_ts
FROM (
  SELECT "table", check_id, severity, status, partition_date, rows_failed, ts, row_number() OVER (
    PARTITION BY "table", check_id, "column", partition_date ORDER BY ts DESC, check_run DESC
  ) AS place
  FROM quality_results
  WHERE partition_date >= {month_ago} OR partition_date IS NULL
)
WHERE place = 1 AND status IN ('failed', 'errored') AND severity IN ('critical', 'error')
GROUP BY "table", check_id, severity, status
ORDER BY severity, "table", check_id, status
LIMIT 50
