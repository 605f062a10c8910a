-- Grain: one row per run, of some. Input: segments. Changes with whatever was recorded of the run.
SELECT run, count(*) AS segments, sum(rows_stored) AS rows_stored, max(plan) AS last_plan
FROM segments
WHERE {where}
GROUP BY run
