-- Grain: one row per run. Input: run_summary. Ratios are sums over sums of the attempts; MFU is unknown where it is
-- unknown of an attempt that stepped.
SELECT run,
  last_value(job ORDER BY attempt) AS job,
  last_value(status ORDER BY attempt) AS status,
  min(ts) AS ts,
  max(end_ts) AS end_ts,
  count(*) AS attempts,
  last_value(world_size ORDER BY attempt) AS world_size,
  last_value(device_name ORDER BY attempt) AS device_name,
  CASE WHEN count(steps) = count(*) THEN sum(steps) END AS steps,
  sum(rank_steps) AS rank_steps,
  min(first_step) AS first_step,
  max(last_step) AS last_step,
  sum(tokens) AS tokens,
  last_value(last_loss ORDER BY attempt) FILTER (WHERE last_loss IS NOT NULL OR last_loss_flag IS NOT NULL) AS last_loss,
  last_value(last_loss_flag ORDER BY attempt) FILTER (WHERE last_loss IS NOT NULL OR last_loss_flag IS NOT NULL)
    AS last_loss_flag,
  min(non_finite_loss_step) AS non_finite_loss_step,
  CAST(sum(sum_step_time_ns) AS DOUBLE) / nullif(sum(rank_steps), 0) / 1e9 AS mean_step_time_s,
  CAST(sum(tokens) AS DOUBLE) / nullif(sum(CASE WHEN tokens IS NOT NULL THEN stepping_ns END), 0) * 1e9 AS tokens_per_s,
  CASE WHEN count(*) FILTER (WHERE rank_steps > 0 AND mfu_ratio IS NULL) = 0
    THEN sum(model_flops) FILTER (WHERE rank_steps > 0) / nullif(sum(peak_flops) FILTER (WHERE rank_steps > 0), 0)
  END AS mfu_ratio,
  CASE WHEN count(*) FILTER (WHERE rank_steps > 0) = 0 THEN min(mfu_reason)
    ELSE min(mfu_reason) FILTER (WHERE rank_steps > 0) END AS mfu_reason,
  min(peak_source) AS peak_source,
  min(peak_dtype) AS peak_dtype,
  min(flops_convention) AS flops_convention,
  max(run_goodput_ratio) AS goodput_ratio,
  sum(wall_ns) AS wall_ns,
  max(run_restarts) AS restarts,
  sum(checkpoints) AS checkpoints,
  sum(non_finite_steps) AS non_finite_steps,
  max(stragglers) AS stragglers,
  last_value(straggler_rank ORDER BY attempt) FILTER (WHERE straggler_rank IS NOT NULL) AS straggler_rank,
  max(injected) AS injected
FROM run_summary
WHERE {where}
GROUP BY run
HAVING {having}
