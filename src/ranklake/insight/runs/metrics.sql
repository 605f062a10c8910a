-- Grain: one row per metric and 1/{parts} of its steps, of the {most} metrics that have most values by step. Inputs: scalars; step_rollup for the axes.
-- Scalars with one name and unit for a metric that others took the place of.
-- Loss, learning rate and gradient norm have charts of their own; what ranklake records of itself is of no run.
-- Means of values; extremes of any rank and step, of those that are finite.
WITH axis AS (
{axis}), mine AS (
  SELECT metric, step, coalesce(agg_mean, value) AS mean, coalesce(agg_min, value) AS low, coalesce(agg_max, value) AS high,
    CASE WHEN value_flag IS NOT NULL THEN 1 ELSE coalesce(agg_non_finite_count, 0) END AS non_finite
  FROM {scalars}
  WHERE run = $run AND step IS NOT NULL
    AND metric NOT IN ('train/loss', 'train/lr', 'train/grad_norm') AND NOT starts_with(metric, 'ranklake/')
    AND (coalesce(agg_mean, value) IS NOT NULL OR value_flag IS NOT NULL)
), most AS (
  SELECT metric, count(*) AS n, min(step) AS first_step, max(step) AS last_step
  FROM mine
  GROUP BY metric
  HAVING max(step) > min(step)
  ORDER BY n DESC, metric
  LIMIT {most}
)
SELECT mine.metric, {part} AS part, min(step) AS step,
  min(tokens_seen) AS tokens_seen, min(elapsed_s) AS elapsed_s,
  avg(mean) AS mean, min(low) FILTER (WHERE abs(low) < 'Infinity') AS low,
  max(high) FILTER (WHERE abs(high) < 'Infinity') AS high, sum(non_finite) AS non_finite
FROM mine
JOIN most ON most.metric = mine.metric
LEFT JOIN axis ON axis.at_step = step
GROUP BY mine.metric, part
ORDER BY mine.metric, part
