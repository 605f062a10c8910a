-- Grain: one row per 1/{parts} of the steps of a run at which a metric has a value. Inputs: scalars; step_rollup for the
-- axes. Means of values; extremes of any rank and step, of those that are finite.
WITH axis AS (
{axis}), mine AS (
  SELECT step, coalesce(agg_mean, value) AS mean, coalesce(agg_min, value) AS low, coalesce(agg_max, value) AS high,
    CASE WHEN value_flag IS NOT NULL THEN 1 ELSE coalesce(agg_non_finite_count, 0) END AS non_finite
  FROM {scalars}
  WHERE run = $run AND metric = $metric AND step IS NOT NULL
    AND (coalesce(agg_mean, value) IS NOT NULL OR value_flag IS NOT NULL)
)
SELECT {part} AS part, min(step) AS step, min(tokens_seen) AS tokens_seen, min(elapsed_s) AS elapsed_s,
  avg(mean) AS mean, min(low) FILTER (WHERE abs(low) < 'Infinity') AS low,
  max(high) FILTER (WHERE abs(high) < 'Infinity') AS high, sum(non_finite) AS non_finite
FROM (SELECT min(step) AS first_step, max(step) AS last_step FROM mine) AS bounds
CROSS JOIN mine
LEFT JOIN axis ON axis.at_step = step
GROUP BY part
ORDER BY part
