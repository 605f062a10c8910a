-- Grain: one row per attempt that failed or died of late. Input: run_summary.
SELECT run, attempt, status, job, ts, end_ts, steps, first_step, last_step, checkpoints, injected
FROM run_summary
WHERE status IN ('failed', 'abandoned') AND end_ts >= {since}
ORDER BY end_ts DESC, run, attempt
LIMIT 50
