-- Grain: one row per attempt of the last two days in which something was NaN or infinite. Input: run_summary.
SELECT run, attempt, status, job, non_finite_steps, last_loss_flag, last_step, end_ts, injected
FROM run_summary
WHERE non_finite_steps > 0 AND end_ts >= {since}
ORDER BY non_finite_steps DESC, run, attempt
LIMIT 50
