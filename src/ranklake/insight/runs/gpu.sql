-- Grain: one row per run. Input: gpu_hourly.
SELECT sum(sample_count) AS n, count(DISTINCT device_uuid) AS devices,
  sum(busy_s) / nullif(sum(busy_observed_s), 0) AS utilization_ratio,
  max(memory_used_max_bytes) AS memory_bytes, sum(energy_joules) AS energy_joules
FROM gpu_hourly
WHERE holder_run = $run
