-- Grain: one row per hour. Input: inference_hourly of the last week.
SELECT hour, sum(requests) AS requests, sum(failed_requests) AS failed_requests,
  CAST(sum(CAST(latency_mean_s * requests AS DECIMAL(30, 9))) AS DOUBLE)
    / nullif(sum(CASE WHEN latency_mean_s IS NOT NULL THEN requests END), 0) AS latency_mean_s,
  max(latency_p95_s) AS latency_p95_max_s
FROM inference_hourly WHERE {window}
GROUP BY hour
ORDER BY hour
