-- Grain: one row per attempt of a run. Input: run_summary.
SELECT attempt, status, ts, end_ts, steps, first_step, last_step, last_loss, mean_step_time_s, tokens_per_s,
  mfu_ratio, mfu_reason, goodput_ratio, checkpoints, straggler_rank, injected,
  wall_ns, productive_ns, init_ns, checkpoint_ns, evaluation_ns, restart_ns, lost_work_ns, stall_ns, unattributed_ns
FROM run_summary
WHERE run = $run
ORDER BY attempt
LIMIT {most}
