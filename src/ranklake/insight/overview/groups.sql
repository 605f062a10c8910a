-- Grain: one row per {group} that held devices or cost something in the last seven UTC dates, or the seven before; most
-- device time first, at most {most}. Inputs: goodput_daily, mfu with attempt_facts, cost, and cluster_hourly or, by device,
-- gpu_hourly. A change is that from the seven dates before. A group of which a week tells nothing, while it tells of
-- others, held and cost nothing then.
WITH held AS (
  SELECT count(*) FILTER (WHERE {now}) > 0 AS is_now, count(*) FILTER (WHERE {before}) > 0 AS is_before
  FROM goodput_daily WHERE {dates}
), priced AS (
  SELECT count(cost_total) FILTER (WHERE {now}) > 0 AS is_now, count(cost_total) FILTER (WHERE {before}) > 0 AS is_before
  FROM cost WHERE {dates}
), given AS (
  SELECT count(*) FILTER (WHERE {now}) > 0 AS is_now, count(*) FILTER (WHERE {before}) > 0 AS is_before
  FROM {table} WHERE {scope}{dates}
), of_runs AS (
  SELECT coalesce({group}, 'not recorded') AS name,
    count(*) FILTER (WHERE {now}) AS runs_now, count(*) FILTER (WHERE {before}) AS runs_before,
    sum(CAST(wall_ns - unallocated_ns AS DOUBLE) * device_count) FILTER (WHERE {now}) / 3.6e12 AS device_h,
    sum(CAST(wall_ns - unallocated_ns AS DOUBLE) * device_count) FILTER (WHERE {before}) / 3.6e12 AS device_h_before,
    sum(CAST(lost_work_ns + stall_ns + restart_ns - unallocated_ns AS DOUBLE) * device_count) FILTER (WHERE {now}) / 3.6e12
      AS wasted_h,
    sum(CAST(productive_ns AS DOUBLE) * device_count) FILTER (WHERE {now})
      / nullif(sum(CAST(CASE WHEN untimed_ns IS NULL THEN wall_ns END AS DOUBLE) * device_count) FILTER (WHERE {now}), 0) AS goodput_ratio,
    sum(CAST(productive_ns AS DOUBLE) * device_count) FILTER (WHERE {before})
      / nullif(sum(CAST(CASE WHEN untimed_ns IS NULL THEN wall_ns END AS DOUBLE) * device_count) FILTER (WHERE {before}), 0) AS goodput_ratio_before
  FROM goodput_daily WHERE {dates} GROUP BY 1
), of_flops AS (
  SELECT coalesce(attempt_facts.{group}, 'not recorded') AS name,
    sum(model_flops) FILTER (WHERE {mfu_now}) / nullif(sum(peak_flops) FILTER (WHERE {mfu_now}), 0) AS mfu_ratio,
    sum(model_flops) FILTER (WHERE {mfu_before}) / nullif(sum(peak_flops) FILTER (WHERE {mfu_before}), 0)
      AS mfu_ratio_before
  FROM mfu
  LEFT JOIN attempt_facts ON attempt_facts.run = mfu.run AND attempt_facts.attempt = mfu.attempt
  WHERE mfu_ratio IS NOT NULL AND mfu.{dates}
  GROUP BY 1
), of_money AS (
  SELECT coalesce({group}, 'not recorded') AS name,
    count(*) FILTER (WHERE {now}) AS bills_now, count(*) FILTER (WHERE {before}) AS bills_before,
    CASE WHEN count(DISTINCT currency) = 1 THEN CAST(sum(cost_total) FILTER (WHERE {now}) AS DOUBLE) END AS cost_total,
    CASE WHEN count(DISTINCT currency) = 1 THEN CAST(sum(cost_total) FILTER (WHERE {before}) AS DOUBLE) END
      AS cost_total_before
  FROM cost WHERE {dates} GROUP BY 1
), of_clusters AS (
  {clusters}
), names AS (
  SELECT name FROM of_runs UNION SELECT name FROM of_money UNION SELECT name FROM of_clusters
), known AS (
  SELECT names.name, wasted_h, goodput_ratio, goodput_ratio_before, mfu_ratio, mfu_ratio_before, utilization_ratio,
    CASE WHEN coalesce(runs_now, 0) = 0 AND held.is_now THEN 0 ELSE device_h END AS device_h,
    CASE WHEN coalesce(runs_before, 0) = 0 AND held.is_before THEN 0 ELSE device_h_before END AS device_h_before,
    CASE WHEN coalesce(hours_now, 0) = 0 AND given.is_now THEN 0 ELSE delivered_h END AS delivered_h,
    CASE WHEN coalesce(hours_before, 0) = 0 AND given.is_before THEN 0 ELSE delivered_h_before END AS delivered_h_before,
    CASE WHEN coalesce(bills_now, 0) = 0 AND priced.is_now THEN 0 ELSE cost_total END AS cost_total,
    CASE WHEN coalesce(bills_before, 0) = 0 AND priced.is_before THEN 0 ELSE cost_total_before END AS cost_total_before
  FROM names
  CROSS JOIN held CROSS JOIN priced CROSS JOIN given
  LEFT JOIN of_runs ON of_runs.name = names.name
  LEFT JOIN of_flops ON of_flops.name = names.name
  LEFT JOIN of_money ON of_money.name = names.name
  LEFT JOIN of_clusters ON of_clusters.name = names.name
)
SELECT name, device_h, device_h - device_h_before AS device_h_change, wasted_h,
  goodput_ratio, goodput_ratio - goodput_ratio_before AS goodput_change,
  mfu_ratio, mfu_ratio - mfu_ratio_before AS mfu_change,
  delivered_h, delivered_h - delivered_h_before AS delivered_h_change, utilization_ratio,
  cost_total, cost_total - cost_total_before AS cost_change
FROM known
ORDER BY greatest(coalesce(device_h, 0), coalesce(delivered_h, 0)) DESC, name
LIMIT {most}
