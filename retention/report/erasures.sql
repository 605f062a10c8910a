-- Grain: an erasure, the latest first: what it is about, by number of rows, and the certificate, whose name and verdict
-- stand in the details of the audit log's row.
WITH heads AS (
  SELECT erasure, min(ts) FILTER (WHERE row_kind = 'proposal') AS proposed,
    min(ts) FILTER (WHERE row_kind = 'approval') AS approved,
    min(ts) FILTER (WHERE row_kind = 'application') AS applied,
    max(rows) FILTER (WHERE row_kind = 'proposal') AS rows,
    count(DISTINCT "table") FILTER (WHERE row_kind = 'item' AND place = 'rows') AS tables
  FROM erasures GROUP BY erasure
), proofs AS (
  SELECT subject AS erasure, count(*) AS certificates, max(ts) AS certified, last_value(details ORDER BY seq) AS details
  FROM audit WHERE action = 'erasure.certified' GROUP BY subject
)
SELECT h.erasure, h.proposed, h.approved, h.applied, h.rows, h.tables, p.certified, p.certificates, p.details
FROM heads AS h LEFT JOIN proofs AS p ON p.erasure = h.erasure
ORDER BY h.proposed DESC, h.erasure LIMIT {most}
