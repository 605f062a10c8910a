-- grain    one row per model, version, endpoint and hour
-- inputs   inferences of the date, from $since on
-- formula  A row represents weight requests (NULL: one). Sums are of decimals, so the order of rows does not matter. A
--          quantile is the lowest latency for which the total weight of lower or equal latencies is at least that share
--          of all weight.
WITH requests AS (
    SELECT
        model, model_version, endpoint, date_trunc('hour', ts) AS hour, status, input_tokens, output_tokens,
        CASE WHEN confidence_ratio BETWEEN 0 AND 1 THEN confidence_ratio END AS confidence_ratio,
        CASE WHEN latency_s BETWEEN 0 AND 1e9 THEN latency_s END AS latency_s,  -- 32 years, so that sums fit
        CASE WHEN queue_time_s BETWEEN 0 AND 1e9 THEN queue_time_s END AS queue_time_s,
        CAST(CASE WHEN weight > 0 AND weight < 1e9 THEN weight ELSE 1 END AS DECIMAL(18, 6)) AS weight
    FROM inferences
    WHERE date = $date AND ts >= $since
),
ordered AS (
    SELECT
        model, model_version, endpoint, hour, latency_s,
        sum(weight) OVER (PARTITION BY model, model_version, endpoint, hour ORDER BY latency_s) AS up_to,
        sum(weight) OVER (PARTITION BY model, model_version, endpoint, hour) AS whole
    FROM requests
    WHERE latency_s IS NOT NULL
),
quantiles AS (
    SELECT
        model, model_version, endpoint, hour,
        min(latency_s) FILTER (WHERE up_to >= 0.5 * whole) AS p50,
        min(latency_s) FILTER (WHERE up_to >= 0.95 * whole) AS p95,
        min(latency_s) FILTER (WHERE up_to >= 0.99 * whole) AS p99
    FROM ordered
    GROUP BY model, model_version, endpoint, hour
),
summed AS (
    SELECT
        model, model_version, endpoint, hour,
        count(*) AS rows,
        CAST(sum(weight) AS DOUBLE) AS requests,
        CAST(coalesce(sum(weight) FILTER (WHERE status <> 'ok'), 0) AS DOUBLE) AS failed_requests,
        CAST(coalesce(sum(weight) FILTER (WHERE status IS NOT NULL), 0) AS DOUBLE) AS requests_with_status,
        CAST(sum(CAST(latency_s * CAST(weight AS DOUBLE) AS DECIMAL(30, 9))) AS DOUBLE)
            / CAST(sum(weight) FILTER (WHERE latency_s IS NOT NULL) AS DOUBLE) AS latency_mean_s,
        CAST(sum(CAST(queue_time_s * CAST(weight AS DOUBLE) AS DECIMAL(30, 9))) AS DOUBLE)
            / CAST(sum(weight) FILTER (WHERE queue_time_s IS NOT NULL) AS DOUBLE) AS queue_mean_s,
        CAST(sum(CAST(input_tokens AS DECIMAL(20, 0)) * weight) AS DOUBLE) AS input_tokens,
        CAST(sum(CAST(output_tokens AS DECIMAL(20, 0)) * weight) AS DOUBLE) AS output_tokens,
        CAST(sum(CAST(confidence_ratio * CAST(weight AS DOUBLE) AS DECIMAL(30, 9))) AS DOUBLE)
            / CAST(sum(weight) FILTER (WHERE confidence_ratio IS NOT NULL) AS DOUBLE) AS confidence_mean_ratio
    FROM requests
    GROUP BY model, model_version, endpoint, hour
)
SELECT
    summed.model, summed.model_version, summed.endpoint, summed.hour, $date AS date, rows, requests, failed_requests,
    failed_requests / nullif(requests_with_status, 0) AS error_ratio,
    latency_mean_s, p50 AS latency_p50_s, p95 AS latency_p95_s, p99 AS latency_p99_s, queue_mean_s,
    input_tokens, output_tokens, least(confidence_mean_ratio, 1) AS confidence_mean_ratio,
    requests_with_status
FROM summed
LEFT JOIN quantiles
    ON quantiles.model = summed.model
    AND (quantiles.model_version IS NOT DISTINCT FROM summed.model_version)
    AND (quantiles.endpoint IS NOT DISTINCT FROM summed.endpoint)
    AND quantiles.hour = summed.hour
