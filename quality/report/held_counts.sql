-- Grain: one row. Input: partitions that are held back, as held.sql gives them.
SELECT count(*) AS partitions, coalesce(sum(rows_failed), 0) AS rows_failed
FROM ({rows})
