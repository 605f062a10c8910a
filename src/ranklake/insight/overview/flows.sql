-- Grain: one row per table that was computed from another. Input: lineage.
SELECT input_table, output_table, count(DISTINCT output_partition) AS partitions, max(ts) AS computed_ts
FROM lineage
GROUP BY input_table, output_table
ORDER BY output_table, input_table
