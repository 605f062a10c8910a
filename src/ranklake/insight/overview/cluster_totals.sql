-- Grain: one row. Inputs: gpu_hourly and cluster_hourly, of {hours} hours.
SELECT nodes, devices, utilization_ratio, allocated_h, idle_h, delivered_h, allocation_ratio, queue_depth, queue_depth_max
FROM (
  SELECT nullif(count(DISTINCT coalesce(host, device_uuid)), 0) AS nodes, nullif(count(DISTINCT device_uuid), 0) AS devices,
    sum(busy_s) / nullif(sum(busy_observed_s), 0) AS utilization_ratio, sum(allocated_s) / 3600 AS allocated_h,
    sum(idle_allocated_s) / 3600 AS idle_h
  FROM gpu_hourly WHERE {window}
) AS sampled
CROSS JOIN (
  SELECT sum(gpu_delivered_s) / 3600 AS delivered_h,
    sum(CASE WHEN gpu_total_s IS NOT NULL THEN gpu_delivered_s END) / nullif(sum(gpu_total_s), 0) AS allocation_ratio,
    sum(queue_job_s) / nullif(3600 * count(DISTINCT CASE WHEN queue_job_s IS NOT NULL THEN hour END), 0) AS queue_depth,
    max(queue_depth_max) AS queue_depth_max
  FROM cluster_hourly WHERE scope = 'cluster' AND {window}
) AS scheduled
