-- Grain: one row per name, tag and summary value of some runs that counts. Input: annotations; no notes, which are
-- free text, and no marks of incidents. The last row of a kind and key counts, unless it takes back.
SELECT run, kind, key, value, number, source, ts
FROM (
  SELECT run, kind, key, value, number, source, ts, removed,
    row_number() OVER (PARTITION BY run, kind, key ORDER BY ts DESC, incarnation DESC, segment DESC, slot DESC) AS place
  FROM annotations
  WHERE {where} AND kind NOT IN ('note', 'mark')
)
WHERE place = 1 AND removed IS NOT TRUE
ORDER BY run, kind, key
