-- Grain: one row per metric and 1/{parts} of its steps, of the {most} metrics that have most values by step. Input: scalars.
-- Means of values; extremes of any rank and step, of those that are finite.
WITH mine AS (
  SELECT metric, step, coalesce(agg_mean, value) AS mean, coalesce(agg_min, value) AS low, coalesce(agg_max, value) AS high
  FROM scalars
  WHERE run = $run AND step IS NOT NULL AND coalesce(agg_mean, value) IS NOT NULL
), most AS (
  SELECT metric, count(*) AS n, min(step) AS first_step, max(step) AS last_step
  FROM mine
  GROUP BY metric
  HAVING max(step) > min(step)
  ORDER BY n DESC, metric
  LIMIT {most}
)
SELECT mine.metric, (step - first_step) * {parts} / (last_step - first_step + 1) AS part, min(step) AS step,
  avg(mean) AS mean, min(low) FILTER (WHERE abs(low) < 'Infinity') AS low,
  max(high) FILTER (WHERE abs(high) < 'Infinity') AS high
FROM mine
JOIN most ON most.metric = mine.metric
GROUP BY mine.metric, part
ORDER BY mine.metric, part
