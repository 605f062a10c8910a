-- Grain: one row: what all ingests brought in so far. Input: ingest_plans, which is kept for ever, so no number falls.
SELECT count(*) AS plans, sum(segments) AS segments, sum(rows_stored) AS stored, sum(rows_rejected) AS rejected,
  sum(rows_duplicate) AS duplicate, max(committed_ts) AS last_ts,
  sum(date_part('epoch', committed_ts) - date_part('epoch', created_ts)) AS duration_s,
  min(plan) FILTER (WHERE committed_ts >= TIMESTAMP '{since}') AS first_plan
FROM ingest_plans
WHERE kind = 'ingest'
