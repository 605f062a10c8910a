-- Grain: one row per verification of a checkpoint by the run itself. Input: artifacts.
SELECT name, verified, ts
FROM artifacts
WHERE run = $run AND kind = 'checkpoint' AND action IN ('verified', 'loaded') AND verified IS NOT NULL
ORDER BY ts
