-- Grain: one row per run. Input: run_goodput.
SELECT attempts, restarts, failures, preemptions, steps_lost, wall_ns, productive_ns, init_ns, checkpoint_ns,
  evaluation_ns, restart_ns, lost_work_ns, stall_ns, unattributed_ns, goodput_ratio, ettr_ratio, mttf_s,
  checkpoints, checkpoint_interval_s, checkpoint_mean_s, unavailable
FROM run_goodput
WHERE run = $run
