-- Grain: one row, or one per table. Input: results.
SELECT {table}
  count(DISTINCT CASE WHEN state = 'failed' AND severity IN ('critical', 'error')
    THEN concat("table", ' ', check_name) END) AS checks_failing,
  count(DISTINCT CASE WHEN state = 'failed' AND severity NOT IN ('critical', 'error')
    THEN concat("table", ' ', check_name) END) AS checks_warning,
  count(DISTINCT CASE WHEN state = 'errored' THEN concat("table", ' ', check_name) END) AS checks_errored,
  count(DISTINCT concat("table", ' ', check_name)) AS checks,
  count(DISTINCT CASE WHEN state IN ('failed', 'errored')
    THEN concat("table", ' ', CAST(partition_date AS VARCHAR)) END) AS partitions_unsound,
  count(DISTINCT concat("table", ' ', CAST(partition_date AS VARCHAR))) AS partitions,
  coalesce(sum(CASE WHEN state = 'failed' THEN rows_failed END), 0) AS rows_failed,
  coalesce(sum(quarantined_rows), 0) AS rows_quarantined,
  max(ts) AS checked_at
FROM results {grouping}
