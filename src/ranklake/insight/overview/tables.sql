-- Grain: one row per table, as the catalog last saw it. Input: catalog_tables.
SELECT "table", kind, summary, owner, steward, retention, contract_version, column_count, rows, files, stored_bytes,
  table_version, daily_growth_rows, daily_growth_bytes, first_date, last_date, written_ts, freshness_s, ts
FROM catalog_tables
WHERE date = (SELECT max(date) FROM catalog_tables)
ORDER BY "table"
