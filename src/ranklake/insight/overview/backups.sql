-- Grain: one row per place: the point in time that a restore of its newest backup leads to. Input: backups.
SELECT place, max(as_of_ts) AS as_of_ts
FROM backups
WHERE kind = 'backup' AND outcome = 'ok'
GROUP BY place
ORDER BY place
