-- Grain: one row per level. Input: logs.
SELECT severity_text AS severity, count(*) AS n, sum(suppressed_count) AS suppressed
FROM logs
WHERE run = $run
GROUP BY severity_text
ORDER BY max(severity_number) DESC NULLS LAST, severity_text
