-- Grain: one row per finding of an incident that says most. Inputs: run_findings and node_findings.
SELECT finding_id, detector, severity, attempt, rank, step, end_step, start_ts, end_ts, value, baseline, effect, message
FROM (
  SELECT finding_id, detector, severity, attempt, rank, step, end_step, start_ts, end_ts, value, baseline, effect,
    message, date
  FROM run_findings
  UNION ALL
  SELECT finding_id, detector, severity, attempt, rank, step, end_step, start_ts, end_ts, value, baseline, effect,
    message, date
  FROM node_findings
)
WHERE finding_id IN ({ids}) AND date >= DATE '{first}' AND date <= DATE '{last}'
ORDER BY start_ts, finding_id
