-- Grain: one row per seven UTC dates, the latest first, {weeks} of them. Inputs: goodput_daily, cluster_hourly, mfu,
-- run_goodput, cost. Ratios are sums over sums. Device time of runs is wall time held times devices; wasted is what of it
-- went to steps that were done again, to restarts and to stalls. A run counts in the week in which it began.
WITH spine AS (
  SELECT * FROM (VALUES {spine}) AS weeks(week, first_day, last_day)
), of_runs AS (
  SELECT (CAST(DATE '{through}' AS INT) - CAST(date AS INT)) / 7 AS week,
    sum(CAST(wall_ns - unallocated_ns AS DOUBLE) * device_count) / 3.6e12 AS device_h,
    sum(CAST(productive_ns AS DOUBLE) * device_count) / 3.6e12 AS productive_h,
    sum(CAST(lost_work_ns + stall_ns + restart_ns - unallocated_ns AS DOUBLE) * device_count) / 3.6e12 AS wasted_h,
    sum(CAST(productive_ns AS DOUBLE) * device_count) / nullif(sum(CAST(CASE WHEN untimed_ns IS NULL THEN wall_ns END AS DOUBLE) * device_count), 0)
      AS goodput_ratio
  FROM goodput_daily WHERE {dates} GROUP BY week
), of_clusters AS (
  SELECT (CAST(DATE '{through}' AS INT) - CAST(date AS INT)) / 7 AS week,
    sum(gpu_total_s) / 3600 AS total_h, sum(gpu_scheduled_s) / 3600 AS scheduled_h,
    sum(gpu_delivered_s) / 3600 AS delivered_h, sum(gpu_busy_s) / 3600 AS busy_h,
    sum(gpu_idle_allocated_s) / 3600 AS idle_h,
    sum(gpu_busy_s) / nullif(sum(gpu_busy_observed_s), 0) AS utilization_ratio,
    sum(energy_joules) / 3.6e6 AS energy_kwh,
    sum(job_completed_count) AS jobs_completed,
    CAST(sum(job_completed_count) AS DOUBLE)
      / nullif(sum(job_completed_count + job_failed_count), 0) AS job_success_ratio
  FROM cluster_hourly WHERE scope = 'cluster' AND {dates} GROUP BY week
), of_flops AS (
  SELECT (CAST(DATE '{through}' AS INT) - CAST(date AS INT)) / 7 AS week,
    sum(model_flops) FILTER (WHERE mfu_ratio IS NOT NULL)
      / nullif(sum(peak_flops) FILTER (WHERE mfu_ratio IS NOT NULL), 0) AS mfu_ratio,
    CAST(sum(step_time_ns) FILTER (WHERE mfu_ratio IS NOT NULL) AS DOUBLE) / nullif(sum(step_time_ns), 0)
      AS mfu_known_ratio,
    min(reason) AS mfu_reason
  FROM mfu WHERE {dates} GROUP BY week
), of_outcomes AS (
  SELECT (CAST(DATE '{through}' AS INT) - CAST(date AS INT)) / 7 AS week,
    count(*) AS runs,
    CAST(count(*) FILTER (WHERE status = 'finished') AS DOUBLE)
      / nullif(count(*) FILTER (WHERE status IN ('finished', 'failed', 'abandoned', 'preempted', 'interrupted')), 0)
      AS success_ratio,
    sum(failures) AS failures, sum(preemptions) AS preemptions, sum(restarts) AS restarts,
    median(CAST(time_to_train_ns AS DOUBLE)) / 3.6e12 AS time_to_train_median_h,
    percentile_cont(0.9) WITHIN GROUP (ORDER BY CAST(time_to_train_ns AS DOUBLE)) / 3.6e12 AS time_to_train_p90_h
  FROM run_goodput WHERE {dates} GROUP BY week
), of_money AS (
  SELECT (CAST(DATE '{through}' AS INT) - CAST(date AS INT)) / 7 AS week,
    CASE WHEN count(DISTINCT currency) = 1 THEN min(currency) END AS currency,
    CASE WHEN count(DISTINCT currency) = 1 THEN CAST(sum(cost_total) AS DOUBLE) END AS cost_total,
    CASE WHEN count(DISTINCT currency) = 1 THEN CAST(sum(cost_productive) AS DOUBLE) END AS cost_productive,
    CASE WHEN count(DISTINCT currency) = 1 THEN CAST(sum(cost_lost_work) AS DOUBLE) END AS cost_lost_work,
    CASE WHEN count(DISTINCT currency) = 1 THEN CAST(sum(cost_idle) AS DOUBLE) END AS cost_idle,
    CASE WHEN count(DISTINCT currency) > 1 THEN 'several currencies' ELSE min(reason) END AS cost_reason,
    CAST(sum(device_s) FILTER (WHERE cost_total IS NOT NULL) AS DOUBLE) / nullif(CAST(sum(device_s) AS DOUBLE), 0)
      AS cost_known_ratio
  FROM cost WHERE {dates} GROUP BY week
)
SELECT spine.week, first_day, last_day,
  device_h, productive_h, wasted_h, goodput_ratio,
  total_h, scheduled_h, delivered_h, busy_h, idle_h, utilization_ratio, energy_kwh, jobs_completed, job_success_ratio,
  mfu_ratio, mfu_known_ratio, mfu_reason,
  coalesce(runs, 0) AS runs, success_ratio, coalesce(failures, 0) AS failures, coalesce(preemptions, 0) AS preemptions,
  coalesce(restarts, 0) AS restarts, time_to_train_median_h, time_to_train_p90_h,
  currency, cost_total, cost_productive, cost_lost_work, cost_idle, cost_reason, cost_known_ratio
FROM spine
LEFT JOIN of_runs ON of_runs.week = spine.week
LEFT JOIN of_clusters ON of_clusters.week = spine.week
LEFT JOIN of_flops ON of_flops.week = spine.week
LEFT JOIN of_outcomes ON of_outcomes.week = spine.week
LEFT JOIN of_money ON of_money.week = spine.week
ORDER BY spine.week
