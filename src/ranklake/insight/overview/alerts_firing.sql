-- Grain: one row per alert that fires as of its last row: the worst first, then the latest. Input: alerts.
SELECT alert_id, severity, rule, subject, message, run, host, labels, since_ts, fired_ts, receivers, messages, failures,
  muted
FROM (SELECT *, row_number() OVER (PARTITION BY alert_id ORDER BY ts DESC) AS place FROM alerts)
WHERE place = 1 AND state = 'firing'
ORDER BY CASE severity WHEN 'critical' THEN 0 WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END, fired_ts DESC,
  alert_id
LIMIT 1000
