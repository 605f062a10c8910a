-- Grain: one row per stage and outcome, of all runs that are kept. Input: stage_runs.
SELECT stage, outcome, count(*) AS runs, sum(duration_s) AS duration_s, sum(cpu_s) AS cpu_s, max(ts) AS last_ts,
  sum(store_gets) AS store_gets, sum(store_puts) AS store_puts, sum(store_lists) AS store_lists, sum(store_deletes) AS store_deletes,
  sum(store_errors) AS store_errors, sum(store_retries) AS store_retries, sum(store_read_bytes) AS store_read_bytes, sum(store_written_bytes) AS store_written_bytes
FROM stage_runs
GROUP BY stage, outcome
ORDER BY stage, outcome
