-- Grain: one row per run whose last attempt goes on. Inputs: run_summary and events: when it last stepped and saved.
SELECT summary.run, summary.attempt, summary.job, summary.ts, summary.end_ts, summary.last_step,
  saved.ts AS checkpoint_ts, saved.step AS checkpoint_step,
  date_part('epoch', CAST({until} AS TIMESTAMP)) - date_part('epoch', CAST(coalesce(saved.ts, summary.ts) AS TIMESTAMP))
    AS unsaved_s
FROM (
  SELECT run, last_value(attempt ORDER BY attempt) AS attempt, last_value(job ORDER BY attempt) AS job,
    last_value(ts ORDER BY attempt) AS ts, last_value(end_ts ORDER BY attempt) AS end_ts,
    last_value(last_step ORDER BY attempt) AS last_step, last_value(status ORDER BY attempt) AS status
  FROM run_summary GROUP BY run
) AS summary
LEFT JOIN (
  SELECT run, max(ts) AS ts, max(step) AS step FROM events
  WHERE event = 'checkpoint' AND date >= {since_date} GROUP BY run
) AS saved ON saved.run = summary.run
WHERE summary.status = 'running' AND summary.end_ts >= {since}
ORDER BY unsaved_s DESC, summary.run
LIMIT 50
