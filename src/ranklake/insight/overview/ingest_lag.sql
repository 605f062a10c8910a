-- Grain: one row per {by} into which segments came by plan {first_plan} or later: how long after the last row of a
-- segment it was committed, as percentiles over segments. Rows that were a day old when they were sealed were imported:
-- nothing was late. The day of sealing is in a segment's path. Inputs: segments, ingest_plans.
SELECT lags."{by}", count(*) AS segments, sum(lags.rows) AS rows,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY lag_s) AS p50_s,
  percentile_cont(0.9) WITHIN GROUP (ORDER BY lag_s) AS p90_s,
  percentile_cont(0.99) WITHIN GROUP (ORDER BY lag_s) AS p99_s
FROM (
  SELECT segments."{by}", segments.rows,
    greatest(date_part('epoch', committed_ts) - date_part('epoch', ts_max), 0) AS lag_s
  FROM segments JOIN ingest_plans ON segments.plan = ingest_plans.plan
  WHERE segments.date >= DATE '{since_date}' AND segments.plan >= {first_plan}
    AND ts_max >= CAST(regexp_match(uri_name, 'segments/([0-9-]+)/')[1] AS DATE) - INTERVAL '1 day'
) AS lags
GROUP BY lags."{by}"
ORDER BY p99_s DESC, lags."{by}"
LIMIT {most}
