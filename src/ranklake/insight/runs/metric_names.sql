-- Grain: one row per metric that a run recorded: how many values, and how many of them by step. Input: scalars.
SELECT metric, count(step) AS n, count(*) AS every
FROM {scalars}
WHERE run = $run
GROUP BY metric
ORDER BY metric
