-- Grain: one row per 1/{parts} of the steps of a run that logged a loss. Inputs: steps; step_rollup for the first and last
-- step. Extremes over all ranks and steps, of losses that are finite: of infinities alone DataFusion tells others.
SELECT {part} AS part, min(step) AS step,
  min(loss) AS loss_min, max(loss) AS loss_max
FROM steps
CROSS JOIN (SELECT min(step) AS first_step, max(step) AS last_step FROM step_rollup WHERE run = $run) AS bounds
WHERE run = $run AND abs(loss) < 'Infinity'
GROUP BY part
ORDER BY part
