-- Grain: a table that has rows, as the catalog last saw it, beside the rule of the policies for its rows, those first of
-- which rows are older than any rule allows. Policies are no table: what they say stands in the text.
SELECT c."table", c.retention AS retention_class, p.rule, p.period_days, p.longest_days, c.first_date,
  CAST(DATE '{today}' AS INT) - CAST(c.first_date AS INT) AS oldest_days,
  greatest(CAST(DATE '{today}' AS INT) - CAST(c.first_date AS INT) - p.longest_days, 0) AS over_days,
  c.rows, c.stored_bytes, c.daily_growth_bytes, c.owner
FROM catalog_tables AS c
JOIN (VALUES {policies}) AS p("table", rule, period_days, longest_days) ON p."table" = c."table"
WHERE c.ts = (SELECT max(ts) FROM catalog_tables) AND c.rows > 0
ORDER BY over_days DESC NULLS LAST, c.stored_bytes DESC, c."table"
