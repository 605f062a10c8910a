-- Grain: one row: the audit log as it stands. 'ranklake audit verify' proves it.
SELECT count(*) AS rows, max(seq) AS last_seq, max(ts) AS last_ts,
  count(*) FILTER (WHERE action LIKE 'grant.%') AS grant_rows
FROM audit
