-- Grain: one row per check and partition of a table. Input: results.
SELECT "table", check_id, "column", severity, partition_date, state, rows_checked, rows_failed
FROM results
ORDER BY "table", check_id, "column", severity, partition_date
