-- Grain: one row per node, the least utilized first, at most {most}. Input: gpu_hourly of {hours} hours. A node is a host;
-- it is named by the first of its devices. An hour is low if the node was held for nine tenths of it, at less than a
-- tenth of its devices' time busy, as in cluster_hourly.
SELECT min(device_uuid) AS first_device, max(devices) AS devices, count(*) AS node_hours,
  sum(observed_s) / 3600 AS observed_h, sum(allocated_s) / 3600 AS allocated_h, sum(busy_s) / 3600 AS busy_h,
  sum(busy_s) / nullif(sum(busy_observed_s), 0) AS utilization_ratio,
  count(*) FILTER (WHERE allocated_s >= 0.9 * observed_s AND busy_s < 0.1 * busy_observed_s) AS low_hours
FROM (
  SELECT coalesce(host, device_uuid) AS node, hour, min(device_uuid) AS device_uuid,
    count(DISTINCT device_uuid) AS devices, sum(observed_s) AS observed_s, sum(allocated_s) AS allocated_s,
    sum(busy_s) AS busy_s, sum(busy_observed_s) AS busy_observed_s
  FROM gpu_hourly WHERE {window}
  GROUP BY coalesce(host, device_uuid), hour
) AS node_hours
GROUP BY node
ORDER BY utilization_ratio NULLS LAST, first_device
LIMIT {most}
