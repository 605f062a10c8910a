-- Grain: one row per attempt that failed or died of late, and after which no attempt of its run went on.
-- Inputs: run_summary; logs, for the first exception.
SELECT run, attempt, status, job, ts, end_ts, steps, first_step, last_step, checkpoints, injected, exception_type,
  exception_rank
FROM (
  SELECT *, max(CASE WHEN status NOT IN ('failed', 'abandoned') THEN attempt END) OVER (PARTITION BY run) AS went_on
  FROM run_summary
)
LEFT JOIN (
  SELECT run AS raised_run, attempt AS raised_attempt, first_value(exception_type ORDER BY ts, rank) AS exception_type,
    first_value(rank ORDER BY ts, rank) AS exception_rank
  FROM logs
  WHERE date >= {since_date} AND exception_type IS NOT NULL
  GROUP BY run, attempt
) ON raised_run = run AND raised_attempt = attempt
WHERE status IN ('failed', 'abandoned') AND end_ts >= {since} AND (went_on IS NULL OR attempt > went_on)
ORDER BY end_ts DESC, run, attempt
LIMIT 50
