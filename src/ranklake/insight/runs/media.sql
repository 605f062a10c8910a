-- Grain: one row per medium of a run: of each name the latest, then those before. Input: media, without bytes.
-- `of_name` and `of_run` say how many there are in all.
SELECT attempt, ts, rank, name, kind, step, bytes, row_count, column_count, incarnation, segment, slot, of_name, of_run
FROM (
  SELECT attempt, ts, rank, name, kind, step, bytes, row_count, column_count, incarnation, segment, slot,
    row_number() OVER (PARTITION BY name, kind ORDER BY step DESC NULLS LAST, ts DESC, incarnation, segment, slot) AS place,
    count(*) OVER (PARTITION BY name, kind) AS of_name,
    count(*) OVER () AS of_run
  FROM media
  WHERE run = $run{limits}
) AS shown
WHERE place <= {each}
ORDER BY place, name, kind
LIMIT {most}
