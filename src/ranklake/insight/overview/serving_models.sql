-- Grain: one row per model and version, the latest first. Input: inference_hourly of the last week.
SELECT model, coalesce(model_version, 'unnamed') AS model_version, sum(requests) AS requests,
  sum(failed_requests) / nullif(sum(requests_with_status), 0) AS failed_ratio,
  CAST(sum(CAST(latency_mean_s * requests AS DECIMAL(30, 9))) AS DOUBLE)
    / nullif(sum(CASE WHEN latency_mean_s IS NOT NULL THEN requests END), 0) AS latency_mean_s,
  max(latency_p95_s) AS latency_p95_max_s, max(latency_p99_s) AS latency_p99_max_s,
  sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens, max(hour) AS last_hour
FROM inference_hourly WHERE {window}
GROUP BY model, coalesce(model_version, 'unnamed')
ORDER BY last_hour DESC, requests DESC, model, model_version
LIMIT {most}
