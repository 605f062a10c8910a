-- Grain: one row per plan that was carried out, the latest first, at most {most}. Input: ingest_plans.
SELECT plan, kind, created_ts, committed_ts, date_part('epoch', committed_ts) - date_part('epoch', created_ts) AS took_s,
  segments, rows_recorded, rows_stored, rows_rejected, rows_duplicate
FROM ingest_plans
ORDER BY plan DESC
LIMIT {most}
