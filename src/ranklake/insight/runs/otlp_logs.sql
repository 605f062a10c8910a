-- Grain: one row per log line of a rank of a run's attempt. Input: logs. Messages and fields are people's text, and
-- asked for by name.
SELECT CAST(ts AS BIGINT) * 1000 AS at_ns, CAST(ts AS BIGINT) AS ts_us, incarnation, segment, slot,
  severity_text, severity_number, template, logger, stream, step,
  source_file, source_line, source_function, thread_name, exception_type, trace_id, span_id, suppressed_count{messages}
FROM logs
WHERE run = $run AND attempt = {attempt} AND rank = {rank}
  AND {after}
ORDER BY ts, incarnation, segment, slot
LIMIT {most}
