-- Grain: one row: the last UTC date of which anything is told, NULL where nothing is. Inputs: goodput_daily,
-- cluster_hourly, cost, run_goodput.
SELECT max(day) AS through FROM (
  SELECT max(date) AS day FROM goodput_daily
  UNION ALL SELECT max(date) AS day FROM cluster_hourly WHERE scope = 'cluster'
  UNION ALL SELECT max(date) AS day FROM cost
  UNION ALL SELECT max(CAST(end_ts AS DATE)) AS day FROM run_goodput
) AS days
