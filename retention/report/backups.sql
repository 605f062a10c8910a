-- Grain: a backup or drill that was tried, the latest first. `latest`: 1 for the last of its kind and place.
SELECT ts, kind, place, outcome, reason, backup, as_of_ts, rpo_s, rto_s, duration_s, rows, size_bytes, copied_bytes,
  row_number() OVER (PARTITION BY kind, place ORDER BY ts DESC) AS latest
FROM backups ORDER BY ts DESC, kind, place LIMIT {most}
