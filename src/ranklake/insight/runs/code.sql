-- Grain: one row per attempt and recording process. Input: runs; columns that are nobody's.
SELECT attempt, ts, job, launcher, framework, framework_version, python_version, ranklake_version, world_size,
  local_world_size, node_count, device_count, device_type, device_name, compute_dtype, param_count, dp_size, tp_size,
  pp_size, ep_size, cp_size, seed, deterministic, "cluster", pool, team, scheduler_job_id, region, deployment_environment,
  git_commit, git_dirty, git_diff_summary, git_patch_sha256, lockfile_sha256, container_image, container_image_digest,
  os_description, cpu_model, cpu_count, host_memory_bytes, driver_version, cuda_version, cudnn_version, nccl_version,
  config, config_sha256, labels, environment, determinism, packages, unavailable
FROM runs
WHERE run = $run
ORDER BY attempt, ts, incarnation
LIMIT {most}
