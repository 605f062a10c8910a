-- Grain: one row per run, kind of artifact and fault of the last two days. Input: artifacts: what could not be saved or
-- loaded, and what was not what had been written.
SELECT run, kind, fault, count(*) AS times, max(ts) AS last_ts, last_value(name ORDER BY ts) AS last_name,
  last_value(exception_type ORDER BY ts) AS exception_type
FROM (
  SELECT run, kind, name, ts, exception_type,
    CASE WHEN action IN ('save_failed', 'load_failed') THEN action ELSE 'changed' END AS fault
  FROM artifacts
  WHERE date >= {since_date} AND ts >= {since}
    AND (action IN ('save_failed', 'load_failed') OR (action IN ('loaded', 'verified') AND verified = FALSE))
)
GROUP BY run, kind, fault
ORDER BY times DESC, run, kind, fault
LIMIT 50
