-- Grain: one row per run, of some. Input: gpu_hourly. Changes with samples of devices that agents took.
SELECT holder_run AS run, sum(sample_count) AS samples
FROM gpu_hourly
WHERE {where}
GROUP BY holder_run
