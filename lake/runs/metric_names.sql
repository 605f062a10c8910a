-- Grain: one row per metric that a run recorded by step. Input: scalars.
SELECT metric, count(*) AS n
FROM {scalars}
WHERE run = $run AND step IS NOT NULL
GROUP BY metric
ORDER BY metric
