# ruff: noqa: E501 - rows as sacct prints them
"""Rows as sacct prints them."""

HEADER = (
    "JobID|JobName|Partition|Account|User|State|ExitCode|Submit|Start|End|Elapsed|Timelimit|NNodes|NCPUS|AllocTRES|"
    "ReqTRES|MaxRSS|TotalCPU|ConsumedEnergyRaw|NodeList|Reason|AdminComment"
)
TRES = "billing=64,cpu=64,gres/gpu:h100=8,gres/gpu=8,mem=1T,node=1"
ROWS = [
    f"100|train|gpu|team|ann|COMPLETED|0:0|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-02T11:05:30|1-01:00:30|2-00:00:00|1|64|{TRES}|{TRES}||10:00:00|3600000|n[1]|None|x",
    "100.batch|batch||team||COMPLETED|0:0|2024-05-01T10:05:00|2024-05-01T10:05:00|2024-05-02T11:05:30|1-01:00:30||1|64|cpu=64,mem=1T,node=1||12345K|09:59:59.500|0|n1||",
    "101_7|array|gpu|team|bob|FAILED|1:0|2024-05-01T10:00:00|2024-05-01T10:00:00|2024-05-01T10:00:09|00:00:09|UNLIMITED|1|1|gres/gpu:a100=2||||0|n2|NonZeroExitCode|",
    "102+0|het|gpu|team|bob|CANCELLED by 1000|0:15|2024-05-01T10:00:00|Unknown|Unknown|00:00:00|01:00:00|2|2|||||0|None assigned|None|",
    "103_[1-9%2]|later|gpu|team|bob|PENDING|0:0|2024-05-01T10:00:00|Unknown|Unknown|00:00:00|01:00:00|2|2||gres/gpu:2||||None assigned|Priority|",
    "104|oom|gpu|team|bob|OUT_OF_ME+|0:125|2024-05-01T10:00:00|2024-05-01T10:00:00|2024-05-01T10:00:09|00:00:09|01:00:00|1|1|||1.5G|00:08.250|0|n2|None|",
]
