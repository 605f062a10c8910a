-- Grain: one row per note. Input: annotations.
SELECT ts, text
FROM annotations
WHERE run = $run AND kind = 'note'
ORDER BY ts DESC, incarnation, segment, slot
LIMIT {most}
