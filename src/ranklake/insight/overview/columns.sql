-- Grain: one row per column of a table, as the catalog last saw it. Input: catalog_columns.
SELECT "table", "column", type, unit, class, mask, required, doc, since, deprecated, value_count, stored_bytes,
  mean_row_bytes
FROM catalog_columns
WHERE date = (SELECT max(date) FROM catalog_columns){table_condition}
ORDER BY "table", position
