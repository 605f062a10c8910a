-- Grain: one row per tenth of utilization that some node had on average. Input: gpu_hourly.
SELECT CAST(least(floor(ratio * 10), 9) AS BIGINT) AS tenth, count(*) AS nodes
FROM (
  SELECT sum(busy_s) / nullif(sum(busy_observed_s), 0) AS ratio
  FROM gpu_hourly WHERE {window}
  GROUP BY coalesce(host, device_uuid)
) AS nodes
WHERE ratio IS NOT NULL
GROUP BY CAST(least(floor(ratio * 10), 9) AS BIGINT)
ORDER BY tenth
