-- Grain: one row per medium of a run of one name, $metric, the latest first. Input: media, without bytes.
SELECT attempt, ts, rank, name, kind, step, media_type, bytes, row_count, column_count, incarnation, segment, slot
FROM media
WHERE run = $run AND name = $metric{more}
ORDER BY step DESC NULLS LAST, ts DESC, incarnation, segment, slot
LIMIT {most}
