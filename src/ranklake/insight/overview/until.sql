-- Grain: one row. Inputs: ingest_plans and segments: until when the lake can tell, and how old the newest row was then;
-- unknown if nothing of the last month came in, as where old files were imported.
SELECT last.committed_ts AS until, newest.ts AS newest_ts,
  CASE WHEN newest.ts >= last.committed_ts - INTERVAL '31 days'
    THEN greatest(date_part('epoch', last.committed_ts) - date_part('epoch', newest.ts), 0) END AS lag_s,
  last.rows_stored, last.rows_rejected
FROM (
  SELECT committed_ts, rows_stored, rows_rejected FROM ingest_plans WHERE kind = 'ingest' ORDER BY plan DESC LIMIT 1
) AS last
CROSS JOIN (SELECT max(ts_max) AS ts FROM segments WHERE unreadable IS NULL) AS newest
