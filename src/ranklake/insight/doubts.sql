-- Grain: one row per table, column and check of severity critical or error that rows fail, by its last result on each
-- partition, but for those whose rows were all taken out. Input: quality_results.
SELECT "table", "column", check_id, severity, count(*) AS partitions, min(partition_date) AS first_date,
  max(partition_date) AS last_date, sum(rows_failed) AS rows_failed
FROM (
  SELECT "table", "column", check_id, severity, status, partition_date, rows_failed, quarantined_rows,
    row_number() OVER (
      PARTITION BY "table", check_id, "column", partition_date ORDER BY ts DESC, check_run DESC
    ) AS place
  FROM quality_results
  WHERE severity IN ('critical', 'error') AND {dates}
)
WHERE place = 1 AND status = 'failed' AND coalesce(quarantined_rows, 0) < greatest(coalesce(rows_failed, 0), 1)
GROUP BY "table", "column", check_id, severity
ORDER BY severity, "table", check_id, "column"
