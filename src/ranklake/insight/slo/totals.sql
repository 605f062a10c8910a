-- Grain: one row. Input: slo, of its last evaluation.
SELECT max(window_end_ts) AS at, count(DISTINCT slo) AS objectives,
  count(DISTINCT CASE WHEN status = 'missed' THEN slo END) AS missed,
  count(DISTINCT CASE WHEN status = 'at_risk' THEN slo END) AS at_risk,
  count(DISTINCT CASE WHEN alert IS NOT NULL THEN slo END) AS alerts
FROM slo WHERE window_end_ts = (SELECT max(window_end_ts) FROM slo)
