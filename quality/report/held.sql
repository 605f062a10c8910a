-- Grain: one row per partition that a check holds back from rollups. Inputs: results, quality_releases, ingest_plans.
-- Free is what a release names that was applied by a finished plan. Releases whose items were altered free nothing,
-- which SQL cannot see: their name is a digest of the items.
, released AS (
  SELECT DISTINCT item."table" AS freed_table, item.partition_date AS freed_date, item.content_sha256 AS freed_sha256
  FROM quality_releases item
  JOIN quality_releases application ON application.release = item.release AND application.row_kind = 'application'
  JOIN ingest_plans ON ingest_plans.plan = application.plan
  WHERE item.row_kind = 'item' AND item.item_kind = 'partition'
), holding AS (
  SELECT results.*, CASE severity WHEN 'critical' THEN 0 WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END AS badness
  FROM results
  LEFT JOIN released ON freed_table = "table" AND freed_date = partition_date AND freed_sha256 = files_sha256
  WHERE status = 'failed' AND on_fail = 'hold' AND freed_table IS NULL
)
SELECT "table", partition_date,
  CASE min(badness) WHEN 0 THEN 'critical' WHEN 1 THEN 'error' WHEN 2 THEN 'warning' ELSE 'info' END AS severity,
  string_agg(DISTINCT check_id, ', ' ORDER BY check_id) AS checks,
  coalesce(max(rows_failed), 0) AS rows_failed,
  max(ts) AS found
FROM holding
GROUP BY "table", partition_date
ORDER BY "table", partition_date DESC
