-- Points of a metric of some runs on an axis, within a range, as common table expressions that others begin with.
-- Inputs: step_rollup for the axes, and what the metric is read from. A step that several attempts made counts as the
-- newest made it; each run has its own beginning. `at` is the place on the axis, which may be logarithmic.
WITH axis AS (
  SELECT run, step AS at_step, wall_s, wall_s - min(wall_s) OVER (PARTITION BY run) AS elapsed_s,
    CASE WHEN count(tokens) OVER so_far = count(*) OVER so_far THEN sum(CAST(tokens AS DOUBLE)) OVER so_far END AS tokens_seen,
    CASE WHEN count(samples) OVER so_far = count(*) OVER so_far THEN sum(CAST(samples AS DOUBLE)) OVER so_far END AS samples_seen
  FROM (
    SELECT run, step, tokens, samples, CAST(CAST(ts AS BIGINT) AS DOUBLE) / 1e6 AS wall_s,
      row_number() OVER (PARTITION BY run, step ORDER BY attempt DESC) AS newest
    FROM step_rollup
    WHERE run IN ($runs)
  ) AS every
  WHERE newest = 1
  WINDOW so_far AS (PARTITION BY run ORDER BY step)
), points AS (
  {points}
), begun AS (
  SELECT seen.run, coalesce(stepped.begin_s, seen.begin_s) AS begin_s
  FROM (SELECT run, min(point_s) AS begin_s FROM points GROUP BY run) AS seen
  LEFT JOIN (SELECT run, min(wall_s) AS begin_s FROM axis GROUP BY run) AS stepped ON stepped.run = seen.run
), within AS (
  SELECT run, x, {at} AS at, mean, low, high
  FROM (
    SELECT points.run, {x} AS x, mean, low, high
    FROM points JOIN begun ON begun.run = points.run
      LEFT JOIN axis ON axis.run = points.run AND axis.at_step = points.step
    WHERE abs(mean) < 'Infinity'
  ) AS placed
  WHERE {range}
), bounds AS (
  SELECT min(at) AS first_at, max(at) AS last_at FROM within
)
