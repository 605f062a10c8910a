-- Grain: one row. Input: alerts, each as of its last row.
SELECT max(ts) AS at, count(*) AS alerts, count(CASE WHEN state = 'firing' THEN 1 END) AS firing,
  count(CASE WHEN state = 'firing' AND severity = 'critical' THEN 1 END) AS critical,
  count(CASE WHEN state = 'firing' AND receivers IS NULL AND muted IS NULL THEN 1 END) AS not_sent,
  count(CASE WHEN state = 'firing' AND muted IS NOT NULL THEN 1 END) AS muted
FROM (SELECT *, row_number() OVER (PARTITION BY alert_id ORDER BY ts DESC) AS place FROM alerts)
WHERE place = 1
