-- Grain: one row per kind of event, severity and attempt. Input: events.
SELECT event, severity, attempt, count(*) AS n, min(ts) AS first_ts, max(ts) AS last_ts, max(step) AS last_step
FROM events
WHERE run = $run
GROUP BY event, severity, attempt
ORDER BY attempt, first_ts, event, severity
LIMIT {most}
