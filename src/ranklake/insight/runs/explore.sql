-- Grain: one row per 1/{parts} of a range of an axis, of the part of a run that is within. Inputs: step_rollup for the
-- axes, and what the metric is read from. Means of values; extremes of any rank and step: no spike is lost, whatever the
-- count of parts. A part with n = 1 is a value as it was recorded.
WITH axis AS (
  SELECT step AS at_step, wall_s, wall_s - min(wall_s) OVER () AS elapsed_s,
    CASE WHEN count(tokens) OVER so_far = count(*) OVER so_far THEN sum(CAST(tokens AS DOUBLE)) OVER so_far END AS tokens_seen,
    CASE WHEN count(samples) OVER so_far = count(*) OVER so_far THEN sum(CAST(samples AS DOUBLE)) OVER so_far END AS samples_seen
  FROM (
    SELECT step, tokens, samples, CAST(CAST(ts AS BIGINT) AS DOUBLE) / 1e6 AS wall_s,
      row_number() OVER (PARTITION BY step ORDER BY attempt DESC) AS newest
    FROM step_rollup
    WHERE run = $run
  ) AS every
  WHERE newest = 1
  WINDOW so_far AS (ORDER BY step)
), points AS (
  {points}
), begun AS (
  SELECT coalesce((SELECT min(wall_s) FROM axis), (SELECT min(point_s) FROM points)) AS begin_s
), within AS (
  SELECT x, mean, low, high
  FROM (
    SELECT {x} AS x, mean, low, high
    FROM points CROSS JOIN begun LEFT JOIN axis ON axis.at_step = points.step
    WHERE abs(mean) < 'Infinity'
  ) AS placed
  WHERE {range}
), bounds AS (
  SELECT min(x) AS first_x, max(x) AS last_x FROM within
)
SELECT least({parts} - 1, CAST((x - first_x) * {parts} / greatest(last_x - first_x, 1e-9) AS BIGINT)) AS part,
  min(x) AS x, avg(mean) AS mean, min(low) FILTER (WHERE abs(low) < 'Infinity') AS low,
  max(high) FILTER (WHERE abs(high) < 'Infinity') AS high, count(*) AS n
FROM within CROSS JOIN bounds
GROUP BY part
ORDER BY part
