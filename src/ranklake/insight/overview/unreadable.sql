-- Grain: one row per table and run of which segments came that cannot be read, and that nothing has put right since.
-- Input: segments, of the rows that {which} keeps.
SELECT "table", run, count(*) AS segments, sum(rows) AS rows, min(rank) AS first_rank, max(rank) AS last_rank,
  min(date) AS first_date, max(date) AS last_date
FROM segments
WHERE unreadable IS NOT NULL AND {which}
GROUP BY "table", run
ORDER BY rows DESC NULLS LAST, "table", run
LIMIT 50
