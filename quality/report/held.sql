-- Grain: one row per partition that a failed check keeps out of rollups.
-- Inputs: results, quality_releases, ingest_plans. A partition is released if a finished plan has applied a release
-- that contains it. A release whose items were altered is invalid: its name is a digest of the items, which SQL cannot
-- check.
, released AS (
  SELECT DISTINCT item."table" AS released_table, item.partition_date AS released_date,
    item.content_sha256 AS released_sha256
  FROM quality_releases item
  JOIN quality_releases application ON application.release = item.release AND application.row_kind = 'application'
  JOIN ingest_plans ON ingest_plans.plan = application.plan
  WHERE item.row_kind = 'item' AND item.item_kind = 'partition'
), holding AS (
  SELECT results.*,
    CASE severity WHEN 'critical' THEN 0 WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END AS severity_rank
  FROM results
  LEFT JOIN released ON released_table = "table" AND released_date = partition_date AND released_sha256 = files_sha256
  WHERE status = 'failed' AND on_fail = 'hold' AND released_table IS NULL
)
SELECT "table", partition_date,
  CASE min(severity_rank) WHEN 0 THEN 'critical' WHEN 1 THEN 'error' WHEN 2 THEN 'warning' ELSE 'info' END AS severity,
  string_agg(DISTINCT check_id, ', ' ORDER BY check_id) AS checks,
  coalesce(max(rows_failed), 0) AS rows_failed,
  max(ts) AS found
FROM holding
GROUP BY "table", partition_date
ORDER BY "table", partition_date DESC
