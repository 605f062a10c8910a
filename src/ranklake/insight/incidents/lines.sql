-- Grain: one row per log line with an error of a run around an incident, in order. Input: logs.
SELECT ts, attempt, rank, severity_text, message, exception_type, exception_message
FROM logs
WHERE run = {run} AND date >= DATE '{first}' AND date <= DATE '{last}' AND ts >= {since} AND ts <= {until}
  AND (severity_number >= 13 OR exception_type IS NOT NULL OR stream IN ('stderr', 'nccl', 'faulthandler', 'excepthook'))
ORDER BY ts, rank
LIMIT {most}
