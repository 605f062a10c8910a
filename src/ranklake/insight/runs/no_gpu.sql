-- Grain: one row per sampler that was not available to the run. Input: events. Messages are not asked: they are free text.
SELECT DISTINCT attributes
FROM events
WHERE run = $run AND event = 'sampler_unavailable'
ORDER BY attributes
