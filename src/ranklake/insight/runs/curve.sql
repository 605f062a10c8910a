-- Grain: one row per 1/{parts} of the steps of a run. Input: step_rollup. Means over ranks and steps; extremes of any rank.
WITH axis AS (
{axis})
SELECT {part} AS part,
  min(step) AS step, max(step) AS last_step, min(ts) AS ts, count(*) AS steps,
  min(tokens_seen) AS tokens_seen, min(elapsed_s) AS elapsed_s,
  sum(CAST(mean_loss AS DOUBLE) * loss_ranks) / nullif(sum(loss_ranks) FILTER (WHERE mean_loss IS NOT NULL), 0) AS loss,
  count(loss_flag) AS loss_non_finite_steps, min(step) FILTER (WHERE loss_flag IS NOT NULL) AS non_finite_step,
  max(lr) AS lr, max(max_grad_norm) AS grad_norm, sum(tokens) AS tokens, sum(samples) AS samples,
  min(min_step_time_s) AS step_time_min_s,
  CAST(sum(sum_step_time_ns) AS DOUBLE)
    / sum(ranks) FILTER (WHERE mean_step_time_s IS NOT NULL) / 1e9 AS step_time_s,
  max(max_step_time_s) AS step_time_max_s,
  CAST(sum(tokens) AS DOUBLE)
    / nullif(sum(CAST(sum_step_time_ns AS DOUBLE) / ranks) FILTER (WHERE tokens IS NOT NULL), 0) * 1e9 AS tokens_per_s,
  sum(mean_data_time_s) / count(*) AS data, sum(mean_forward_time_s) / count(*) AS forward,
  sum(mean_backward_time_s) / count(*) AS backward, sum(mean_collective_time_s) / count(*) AS collective,
  sum(mean_optimizer_time_s) / count(*) AS optimizer, sum(mean_checkpoint_time_s) / count(*) AS checkpoint,
  sum(mean_evaluation_time_s) / count(*) AS evaluation,
  max(max_memory_allocated_bytes) AS memory_bytes,
  sum(non_finite_ranks) AS non_finite_ranks
FROM step_rollup
CROSS JOIN (SELECT min(step) AS first_step, max(step) AS last_step FROM step_rollup WHERE run = $run) AS bounds
JOIN axis ON axis.at_step = step
WHERE run = $run
GROUP BY part
ORDER BY part
