-- Grain: one row per finding about the device or host of a rank. Inputs: node_findings, ranks. What is about a host is
-- about each rank on it.
SELECT DISTINCT run, attempt, rank, detector, severity, message, start_ts, end_ts
FROM (
  SELECT findings.run, findings.attempt, coalesce(findings.rank, places.rank) AS rank, detector, severity, message, start_ts, end_ts
  FROM (SELECT * FROM node_findings WHERE {runs}) AS findings
  LEFT JOIN (
    SELECT run, attempt, rank, last_value(host ORDER BY ts) AS host FROM ranks WHERE {runs} GROUP BY run, attempt, rank
  ) AS places
    ON findings.rank IS NULL AND places.run = findings.run AND places.attempt = findings.attempt AND places.host = findings.host
) AS placed
WHERE {ranks}
ORDER BY run, attempt, rank, CASE severity WHEN 'critical' THEN 0 WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END, start_ts, message
LIMIT 200
