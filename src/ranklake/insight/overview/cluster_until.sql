-- Grain: one row: the last hour of which anything is told of devices or schedulers. Inputs: gpu_hourly, cluster_hourly.
SELECT max(hour) AS until FROM (
  SELECT max(hour) AS hour FROM gpu_hourly UNION ALL SELECT max(hour) AS hour FROM cluster_hourly WHERE scope = 'cluster'
) AS told
