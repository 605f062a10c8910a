-- Grain: one row. Input: rows of held.sql.
SELECT count(*) AS partitions, coalesce(sum(rows_failed), 0) AS rows_failed
FROM ({rows})
