-- Grain: one row per UTC date of {weeks} weeks of which anything is told. Inputs: goodput_daily, cluster_hourly.
SELECT coalesce(of_runs.date, of_clusters.date) AS date,
  device_h, productive_h, wasted_h, delivered_h, busy_h, idle_h, utilization_ratio, goodput_ratio
FROM (
  SELECT date,
    sum(CAST(wall_ns - unallocated_ns AS DOUBLE) * device_count) / 3.6e12 AS device_h,
    sum(CAST(productive_ns AS DOUBLE) * device_count) / 3.6e12 AS productive_h,
    sum(CAST(lost_work_ns + stall_ns + restart_ns - unallocated_ns AS DOUBLE) * device_count) / 3.6e12 AS wasted_h,
    sum(CAST(productive_ns AS DOUBLE) * device_count) / nullif(sum(CAST(CASE WHEN untimed_ns IS NULL THEN wall_ns END AS DOUBLE) * device_count), 0)
      AS goodput_ratio
  FROM goodput_daily WHERE {dates} GROUP BY date
) AS of_runs
FULL JOIN (
  SELECT date, sum(gpu_delivered_s) / 3600 AS delivered_h, sum(gpu_busy_s) / 3600 AS busy_h,
    sum(gpu_idle_allocated_s) / 3600 AS idle_h,
    sum(gpu_busy_s) / nullif(sum(gpu_busy_observed_s), 0) AS utilization_ratio
  FROM cluster_hourly WHERE scope = 'cluster' AND {dates} GROUP BY date
) AS of_clusters ON of_clusters.date = of_runs.date
ORDER BY date
