-- Grain: one row per log line within a step of a run's attempt. Input: logs. Messages are people's text and not in it.
SELECT rank, incarnation, CAST(ts AS BIGINT) * 1000 AS at_ns, severity_text, logger, template, exception_type, span_id,
  source_file, source_line
FROM logs
WHERE run = $run AND attempt = {attempt} AND step = {step}
ORDER BY rank, ts
LIMIT {most}
