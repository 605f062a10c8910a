-- Grain: one row per run. Input: host_samples.
SELECT count(*) AS n, avg(cpu_utilization_ratio) AS cpu_ratio, max(memory_used_bytes) AS memory_bytes
FROM host_samples
WHERE holder_run = $run OR run = $run
