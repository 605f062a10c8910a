-- Grain: one row per stage that ran in the last seven days before {until}: how its runs ended, how long they took, what
-- CPU time and requests to stores they cost. Input: stage_runs.
SELECT stage, count(*) AS runs, count(*) FILTER (WHERE outcome = 'failed') AS failed,
  count(*) FILTER (WHERE outcome = 'findings') AS with_findings,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY duration_s) AS p50_s,
  percentile_cont(0.9) WITHIN GROUP (ORDER BY duration_s) AS p90_s,
  sum(duration_s) AS duration_s, sum(cpu_s) AS cpu_s,
  sum(store_gets + store_puts + store_lists + store_deletes) AS requests, sum(store_errors) AS failed_requests, max(ts) AS last_ts,
  first_value(outcome ORDER BY ts DESC) AS last_outcome
FROM stage_runs
WHERE date >= DATE '{since_date}' AND ts <= TIMESTAMP '{until}'
GROUP BY stage
ORDER BY duration_s DESC, stage
