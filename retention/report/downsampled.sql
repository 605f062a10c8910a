-- Grain: a table of which rows became aggregates, and the length of their intervals.
SELECT "table", interval_ns, count(DISTINCT date) AS dates, min(date) AS first_date, max(date) AS last_date,
  sum(rows) AS rows, count(*) AS kept_rows
FROM downsampled GROUP BY 1, 2 ORDER BY 1, 2 LIMIT {most}
