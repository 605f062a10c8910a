-- Grain: one row per incident: those that go on first, then the worst, then the latest. Input: incidents.
SELECT incident_id, kind, severity, title, run, attempt, job, rank, host, rack, switch, rail, device_uuid, step, start_ts, end_ts, last_ts,
  detected_ts, time_to_detect_s, time_to_recover_s, device_count, affected_device_s, affected_cost, currency, causes,
  status, findings, detectors, evidence, injected
FROM incidents
WHERE {where}
ORDER BY CASE severity WHEN 'critical' THEN 0 WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END,
  end_ts IS NOT NULL, affected_device_s DESC NULLS LAST, start_ts DESC, incident_id
LIMIT {most}
