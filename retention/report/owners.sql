-- Grain: a team that answers for tables, by their contracts, that which stores the most first. Input: the catalog's last
-- look.
SELECT owner, count(*) AS tables, sum(rows) AS rows, sum(stored_bytes) AS stored_bytes,
  sum(daily_growth_bytes) AS daily_growth_bytes
FROM catalog_tables WHERE ts = (SELECT max(ts) FROM catalog_tables) AND rows > 0
GROUP BY owner ORDER BY stored_bytes DESC, owner
