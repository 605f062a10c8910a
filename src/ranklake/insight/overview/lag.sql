-- Grain: one row: what came in last, all together. Inputs: ingest_plans, segments.
SELECT until_ts, plans, rows_stored, rows_rejected, rows_duplicate, newest_ts,
  CASE WHEN newest_ts >= until_ts - INTERVAL '31 days'
    THEN greatest(date_part('epoch', until_ts) - date_part('epoch', newest_ts), 0) END AS lag_s
FROM (
  SELECT max(committed_ts) AS until_ts, count(*) AS plans, sum(rows_stored) AS rows_stored,
    sum(rows_rejected) AS rows_rejected, sum(rows_duplicate) AS rows_duplicate
  FROM ingest_plans WHERE kind = 'ingest'
) AS ingested
CROSS JOIN (SELECT max(ts_max) AS newest_ts FROM segments WHERE unreadable IS NULL) AS newest
