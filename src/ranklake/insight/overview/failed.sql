-- Grain: one row per attempt that failed or died of late, and after which no attempt of its run went on.
-- Input: run_summary.
SELECT run, attempt, status, job, ts, end_ts, steps, first_step, last_step, checkpoints, injected
FROM (
  SELECT *, max(CASE WHEN status NOT IN ('failed', 'abandoned') THEN attempt END) OVER (PARTITION BY run) AS went_on
  FROM run_summary
)
WHERE status IN ('failed', 'abandoned') AND end_ts >= {since} AND (went_on IS NULL OR attempt > went_on)
ORDER BY end_ts DESC, run, attempt
LIMIT 50
