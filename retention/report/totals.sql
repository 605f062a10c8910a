-- Grain: one row: what all tables hold, as the catalog last saw it.
SELECT count(*) AS tables, sum(rows) AS rows, sum(stored_bytes) AS stored_bytes, max(ts) AS seen
FROM catalog_tables WHERE ts = (SELECT max(ts) FROM catalog_tables) AND rows > 0
