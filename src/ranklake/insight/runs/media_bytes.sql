-- Grain: one row per medium, of some, whose bytes are in a column. Input: media.
SELECT incarnation, segment, slot, {column} AS held
FROM media
WHERE run = $run AND {column} IS NOT NULL AND ({keys})
ORDER BY incarnation, segment, slot
