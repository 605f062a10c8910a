-- Grain: one row per run, with its last known values. Input: runs.
SELECT run, last_value(team ORDER BY ts) AS team, last_value(labels ORDER BY ts) AS labels,
  last_value(deployment_environment ORDER BY ts) AS environment
FROM runs
WHERE {where}
GROUP BY run
