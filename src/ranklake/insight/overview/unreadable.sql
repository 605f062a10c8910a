-- Grain: one row per table and run of which segments came of late that cannot be read. Input: segments.
SELECT "table", run, count(*) AS segments, sum(rows) AS rows, min(rank) AS first_rank, max(rank) AS last_rank,
  min(date) AS first_date, max(date) AS last_date
FROM segments
WHERE unreadable IS NOT NULL AND date >= {since_date}
GROUP BY "table", run
ORDER BY rows DESC NULLS LAST, "table", run
LIMIT 50
