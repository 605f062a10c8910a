-- Grain: one row per 1/{parts} of the steps of a run. Input: step_rollup. The mean over ranks and steps that have a loss.
SELECT {part} AS part, min(step) AS step,
  sum(CAST(mean_loss AS DOUBLE) * loss_ranks) / sum(loss_ranks) AS loss
FROM step_rollup
CROSS JOIN (SELECT min(step) AS first_step, max(step) AS last_step FROM step_rollup WHERE run = $run) AS bounds
WHERE run = $run AND loss_ranks > 0
GROUP BY part
ORDER BY part
