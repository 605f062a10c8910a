-- Grain: one row per table and run with unreadable segments that are not repaired yet.
-- Input: segments, restricted by {condition}.
SELECT "table", run, count(*) AS segments, sum(rows) AS rows, min(rank) AS first_rank, max(rank) AS last_rank,
  min(date) AS first_date, max(date) AS last_date
FROM segments
WHERE unreadable IS NOT NULL AND {condition}
GROUP BY "table", run
ORDER BY rows DESC NULLS LAST, "table", run
LIMIT 50
