-- Grain: one row per hour, all clusters together. Input: cluster_hourly. The depth of a queue is jobs waiting times time
-- over the hour; what nobody told of an hour is NULL.
SELECT hour, sum(gpu_busy_s) / nullif(sum(gpu_busy_observed_s), 0) AS utilization_ratio,
  sum(CASE WHEN gpu_total_s IS NOT NULL THEN gpu_delivered_s END) / nullif(sum(gpu_total_s), 0) AS allocation_ratio,
  sum(queue_job_s) / 3600 AS queue_depth, sum(queue_depth_max) AS queue_depth_max
FROM cluster_hourly WHERE scope = 'cluster' AND {window}
GROUP BY hour
ORDER BY hour
