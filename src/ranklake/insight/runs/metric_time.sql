-- Grain: one row per 1/{parts} of the time for which a run recorded a metric that has no steps. Inputs: scalars; step_rollup
-- for the first step's begin, if there is one. Means of values; extremes of any rank, of those that are finite.
WITH mine AS (
  SELECT CAST(ts AS BIGINT) AS at_us, coalesce(agg_mean, value) AS mean, coalesce(agg_min, value) AS low,
    coalesce(agg_max, value) AS high,
    CASE WHEN value_flag IS NOT NULL THEN 1 ELSE coalesce(agg_non_finite_count, 0) END AS non_finite
  FROM {scalars}
  WHERE run = $run AND metric = $metric AND step IS NULL
), bounds AS (
  SELECT min(at_us) AS first_us, max(at_us) AS last_us FROM mine
), begun AS (
  SELECT min(CAST(ts AS BIGINT)) AS begin_us FROM step_rollup WHERE run = $run
)
SELECT CAST(CAST(at_us - first_us AS DOUBLE) * ({parts} - 1) / greatest(last_us - first_us, 1) AS BIGINT) AS part,
  CAST(min(at_us) - min(coalesce(begin_us, first_us)) AS DOUBLE) / 1e6 AS elapsed_s,
  avg(mean) AS mean, min(low) FILTER (WHERE abs(low) < 'Infinity') AS low,
  max(high) FILTER (WHERE abs(high) < 'Infinity') AS high, sum(non_finite) AS non_finite
FROM mine CROSS JOIN bounds CROSS JOIN begun
GROUP BY part
ORDER BY part
