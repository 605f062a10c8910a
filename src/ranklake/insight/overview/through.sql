-- Grain: one row: the last UTC date of which anything is told, NULL where nothing is. Inputs: goodput_daily,
-- cluster_hourly, cost, run_goodput; and ingest_plans: what is dated after the last ingest, a wrong clock dated.
SELECT max(day) AS through FROM (
  SELECT date AS day FROM goodput_daily
  UNION ALL SELECT date AS day FROM cluster_hourly WHERE scope = 'cluster'
  UNION ALL SELECT date AS day FROM cost
  UNION ALL SELECT CAST(end_ts AS DATE) AS day FROM run_goodput
) AS days
WHERE day <= coalesce((SELECT max(CAST(committed_ts AS DATE)) FROM ingest_plans), day)
