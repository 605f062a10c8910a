-- Grain: one row per log line of a run: errors first, then the latest. Input: logs; messages, so it is for roles alone.
SELECT ts, severity, rank, message, logger, step, exception_type, attempt
FROM (
  SELECT ts, severity_text AS severity, rank, left(message, {characters}) AS message, logger, step, exception_type, attempt,
    row_number() OVER (PARTITION BY severity_number >= 17 ORDER BY ts DESC, rank, incarnation, segment, slot) AS place,
    CASE WHEN severity_number >= 17 THEN 0 ELSE 1 END AS "group"
  FROM logs
  WHERE run = $run
) AS lines
WHERE place <= {most}
ORDER BY "group", place
LIMIT {most}
