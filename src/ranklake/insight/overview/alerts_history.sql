-- Grain: one row per alert of the last 31 days, as of its last row: the latest first. Input: alerts.
SELECT alert_id, state, severity, rule, subject, message, run, host, labels, since_ts, fired_ts, resolved_ts,
  date_part('epoch', resolved_ts) - date_part('epoch', fired_ts) AS lasted_s, receivers, messages, failures, muted
FROM (SELECT *, row_number() OVER (PARTITION BY alert_id ORDER BY ts DESC) AS place FROM alerts)
WHERE place = 1 AND date > (SELECT max(date) FROM alerts) - INTERVAL '31 days'
ORDER BY fired_ts DESC, alert_id
LIMIT 1000
