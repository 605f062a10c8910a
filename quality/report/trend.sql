-- Grain: one row per partition date, the newest 400. Input: results. Skipped checks do not count.
SELECT partition_date AS date,
  count(*) AS checks,
  sum(CASE WHEN state IN ('passed', 'quarantined') THEN 1 ELSE 0 END) AS checks_passed,
  sum(CASE WHEN state = 'failed' THEN 1 ELSE 0 END) AS checks_failed,
  sum(CASE WHEN state = 'errored' THEN 1 ELSE 0 END) AS checks_errored,
  CAST(sum(CASE WHEN state IN ('passed', 'quarantined') THEN 1 ELSE 0 END) AS DOUBLE) / count(*) AS passed_ratio
FROM results
WHERE state <> 'skipped'
GROUP BY partition_date
ORDER BY partition_date DESC
LIMIT 400
