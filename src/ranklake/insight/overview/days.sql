-- Grain: one row per UTC date on which something was ingested, the last {days} of them. Input: ingest_plans.
SELECT * FROM (
  SELECT date, count(*) AS ingests, sum(segments) AS segments, sum(rows_stored) AS rows_stored,
    sum(rows_rejected) AS rows_rejected, sum(rows_duplicate) AS rows_duplicate,
    max(date_part('epoch', committed_ts) - date_part('epoch', created_ts)) AS longest_s
  FROM ingest_plans WHERE kind = 'ingest'
  GROUP BY date ORDER BY date DESC LIMIT {days}
)
ORDER BY date
