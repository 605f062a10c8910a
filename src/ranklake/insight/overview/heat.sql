-- Grain: one row per hour and group of nodes, the least utilized first: a group is a node, or several alike where there
-- are more than {rows}. Input: gpu_hourly.
WITH node_hours AS (
  SELECT coalesce(host, device_uuid) AS node, hour, min(device_uuid) AS device_uuid, sum(busy_s) AS busy_s,
    sum(busy_observed_s) AS observed_s
  FROM gpu_hourly WHERE {window}
  GROUP BY coalesce(host, device_uuid), hour
),
nodes AS (
  SELECT node, first_device, (number - 1) * least(every, {rows}) / every AS place
  FROM (
    SELECT node, first_device, CAST(count(*) OVER () AS BIGINT) AS every,
      CAST(row_number() OVER (ORDER BY ratio NULLS LAST, first_device) AS BIGINT) AS number
    FROM (
      SELECT node, min(device_uuid) AS first_device, sum(busy_s) / nullif(sum(observed_s), 0) AS ratio
      FROM node_hours GROUP BY node
    ) AS ratios
  ) AS numbered
)
SELECT nodes.place, node_hours.hour, count(*) AS nodes, min(nodes.first_device) AS first_device,
  sum(busy_s) / nullif(sum(observed_s), 0) AS utilization_ratio,
  min(busy_s / nullif(observed_s, 0)) AS least_ratio
FROM node_hours JOIN nodes ON nodes.node = node_hours.node
GROUP BY nodes.place, node_hours.hour
ORDER BY nodes.place, node_hours.hour
