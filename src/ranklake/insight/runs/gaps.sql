-- Grain: one row per table of which rows of the run were not recorded or not stored. Input: segments.
SELECT "table", sum(gap_rows) AS gap_rows, sum(rows_rejected) AS rows_rejected, sum(rows) AS rows
FROM segments
WHERE run = $run
GROUP BY "table"
HAVING sum(gap_rows) > 0 OR sum(rows_rejected) > 0
ORDER BY "table"
