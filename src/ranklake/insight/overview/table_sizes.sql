-- Grain: one row per table, as the catalog last saw it. Input: catalog_tables.
SELECT "table", rows, stored_bytes, files, daily_growth_bytes
FROM catalog_tables
WHERE date = (SELECT max(date) FROM catalog_tables)
ORDER BY "table"
