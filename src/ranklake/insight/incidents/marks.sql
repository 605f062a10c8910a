-- Grain: one row per mark that a person gave an incident, in order. Input: annotations.
SELECT key AS incident_id, value AS mark, text AS why, author, ts
FROM annotations
WHERE kind = 'mark'
ORDER BY ts, incarnation, segment, slot
