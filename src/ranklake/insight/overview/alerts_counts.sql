-- Grain: one row per severity: alerts that fire as of their last row, and messages of all alerts that are kept. Input: alerts.
SELECT severity, count(*) FILTER (WHERE state = 'firing') AS firing, sum(messages) AS messages, sum(failures) AS failures
FROM (SELECT *, row_number() OVER (PARTITION BY alert_id ORDER BY ts DESC) AS place FROM alerts)
WHERE place = 1
GROUP BY severity
ORDER BY severity
