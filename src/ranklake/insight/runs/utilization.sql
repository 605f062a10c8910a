-- Grain: one row per 1/{parts} of the steps of a run whose MFU is known. Inputs: step_mfu; step_rollup for the first and
-- last step. Sums over sums.
WITH axis AS (
{axis})
SELECT {part} AS part, min(step) AS step,
  min(tokens_seen) AS tokens_seen, min(elapsed_s) AS elapsed_s,
  sum(model_flops) / nullif(sum(peak_flops), 0) AS mfu_ratio,
  sum(hardware_flops) / nullif(sum(peak_flops) FILTER (WHERE hardware_flops IS NOT NULL), 0) AS hfu_ratio
FROM step_mfu
CROSS JOIN (SELECT min(step) AS first_step, max(step) AS last_step FROM step_rollup WHERE run = $run) AS bounds
JOIN axis ON axis.at_step = step
WHERE run = $run AND mfu_ratio IS NOT NULL
GROUP BY part
ORDER BY part
