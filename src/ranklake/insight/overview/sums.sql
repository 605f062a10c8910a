-- Grain: one row: all tables together, as the catalog last saw them. Inputs: catalog_tables, catalog_columns,
-- catalog_metrics.
SELECT tables, rows, stored_bytes, daily_growth_bytes, refreshed_ts, columns, classified_columns, metrics,
  unregistered_metrics
FROM (
  SELECT count(*) AS tables, sum(rows) AS rows, sum(stored_bytes) AS stored_bytes,
    sum(daily_growth_bytes) AS daily_growth_bytes, max(ts) AS refreshed_ts
  FROM catalog_tables WHERE date = (SELECT max(date) FROM catalog_tables)
) AS of_tables
CROSS JOIN (
  SELECT count(*) AS columns, count(*) FILTER (WHERE class <> 'operational') AS classified_columns
  FROM catalog_columns WHERE date = (SELECT max(date) FROM catalog_columns)
) AS of_columns
CROSS JOIN (
  SELECT count(*) AS metrics, count(*) FILTER (WHERE status = 'unregistered') AS unregistered_metrics
  FROM catalog_metrics WHERE date = (SELECT max(date) FROM catalog_metrics)
) AS of_metrics
