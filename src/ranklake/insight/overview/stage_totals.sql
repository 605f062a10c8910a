-- Grain: one row per stage and outcome, of all runs that are kept. Input: stage_runs.
SELECT stage, outcome, count(*) AS runs, sum(duration_s) AS duration_s, sum(cpu_s) AS cpu_s, max(ts) AS last_ts
FROM stage_runs
GROUP BY stage, outcome
ORDER BY stage, outcome
