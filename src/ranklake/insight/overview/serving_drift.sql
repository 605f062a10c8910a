-- Grain: one row per distribution and statistic of the last date compared, what has drifted first. Input: drift.
SELECT scope || ' ' || subject || ' ' || statistic AS distribution, status, value, threshold, window_count,
  baseline_count, date
FROM drift
WHERE date = (SELECT max(date) FROM drift WHERE {dates}) AND {dates}
ORDER BY status = 'drifted' DESC, abs(value) / threshold DESC NULLS LAST, distribution
LIMIT {most}
