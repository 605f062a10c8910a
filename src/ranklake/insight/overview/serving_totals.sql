-- Grain: one row. Input: inference_hourly of the last week.
SELECT count(DISTINCT model) AS models, sum(requests) AS requests, sum(failed_requests) AS failed_requests,
  sum(failed_requests) / nullif(sum(requests_with_status), 0) AS failed_ratio, max(latency_p95_s) AS latency_p95_max_s
FROM inference_hourly WHERE {window}
