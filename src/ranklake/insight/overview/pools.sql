-- Grain: one row per pool, the longest queue first. Input: cluster_hourly.
SELECT coalesce(pool, 'unnamed') AS pool, sum(gpu_total_s) / 3600 AS total_h, sum(gpu_delivered_s) / 3600 AS delivered_h,
  sum(CASE WHEN gpu_total_s IS NOT NULL THEN gpu_delivered_s END) / nullif(sum(gpu_total_s), 0) AS allocation_ratio,
  sum(gpu_busy_s) / nullif(sum(gpu_busy_observed_s), 0) AS utilization_ratio,
  sum(queue_job_s) / nullif(3600 * count(queue_job_s), 0) AS queue_depth, max(queue_depth_max) AS queue_depth_max
FROM cluster_hourly WHERE scope = 'pool' AND {window}
GROUP BY coalesce(pool, 'unnamed')
ORDER BY queue_depth DESC NULLS LAST, pool
LIMIT {most}
