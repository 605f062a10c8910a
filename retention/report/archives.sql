-- Grain: a table and a place of archives. What an erasure wrote anew counts as it is since.
WITH told AS (
  SELECT *, row_number() OVER (PARTITION BY archive ORDER BY ts DESC, row_kind DESC) AS latest,
    first_value(ts) OVER (PARTITION BY archive ORDER BY ts) AS begun
  FROM archives
)
SELECT "table", uri, storage_class, count(*) AS archives, min(partition_date) AS first_date,
  max(partition_date) AS last_date, sum(rows) AS rows, sum(bytes) AS bytes, bool_or(needs_approval) AS needs_approval,
  max(begun) AS archived
FROM told WHERE latest = 1 AND row_kind <> 'removed'
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT {most}
