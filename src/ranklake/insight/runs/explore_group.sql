-- Grain: one row per 1/{parts} of a range of an axis, of the runs that have a value in it. Inputs: those of placed.sql.
-- Each run counts once a part, by its mean there, however many steps it made; n is how many runs. The band is between
-- runs: its quantiles are interpolated between neighbours in order, as numpy.quantile does.
{placed}, of_each AS (
  SELECT run, least({parts} - 1, CAST((at - first_at) * {parts} / greatest(last_at - first_at, 1e-9) AS BIGINT)) AS part,
    min(x) AS x, avg(mean) AS mean, min(low) FILTER (WHERE abs(low) < 'Infinity') AS low,
    max(high) FILTER (WHERE abs(high) < 'Infinity') AS high
  FROM within CROSS JOIN bounds
  GROUP BY run, part
), ranked AS (
  SELECT part, x, mean, low, high, count(*) OVER (PARTITION BY part) AS runs,
    row_number() OVER (PARTITION BY part ORDER BY mean) - 1 AS place
  FROM of_each
)
SELECT part, min(x) AS x, avg(mean) AS mean, {low} AS low, {high} AS high, count(*) AS n
FROM ranked
GROUP BY part
ORDER BY part
