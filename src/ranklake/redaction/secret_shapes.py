"""Shapes of secrets: what those who hand out credentials put in front of them, so that they are found."""

import re
from typing import Final

_TABLE: Final = (
    # literals, one of which every match holds · the pattern
    (("AKIA", "ASIA", "ABIA", "ACCA"), r"A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{16}"),  # AWS access key id
    (("AIza",), r"AIza[0-9A-Za-z_\-]{30,}"),  # Google API key
    (("ya29.",), r"ya29\.[A-Za-z0-9_\-]{20,}"),  # Google access token
    (("GOCSPX-",), r"GOCSPX-[A-Za-z0-9_\-]{20,}"),  # Google OAuth client
    (("AccountKey",), r"AccountKey=[^;\s\"'<>]+"),  # Azure storage
    (("SharedAccess",), r"SharedAccess(?:Signature|Key)=[^;\s\"'<>]+"),
    (("gh",), r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"),
    (("gl",), r"gl(?:pat|ptt|dt|rt|cbt|ft|soat|oas)-[A-Za-z0-9_\-.]{16,}"),  # GitLab
    (("hf_", "api_org_"), r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),  # Hugging Face
    (("sk-",), r"sk-(?<![A-Za-z0-9]sk-)[A-Za-z0-9_\-]{20,}"),  # OpenAI, Anthropic; no mask-rcnn-…
    (("gsk_", "r8_"), r"(?:gsk|r8)_[A-Za-z0-9]{20,}"),  # Groq, Replicate
    (("wandb",), r"wandb[^\n]{0,64}?(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])"),  # W&B's looks like a commit
    (("dapi",), r"dapi[0-9a-f]{32}"),  # Databricks
    (("do",), r"do[opr]_v1_[a-f0-9]{40,}"),  # DigitalOcean
    (("lsv2_",), r"lsv2_[a-z]{2}_[0-9a-fA-F]{20,}(?:_[0-9a-fA-F]+)?"),  # LangSmith
    (("sbp_",), r"sbp_[0-9a-fA-F]{32,}"),  # Supabase
    (("shp",), r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),  # Shopify
    (("PMAK-",), r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),  # Postman
    (("glsa_",), r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}"),  # Grafana
    (("dckr_pat_",), r"dckr_pat_[A-Za-z0-9_\-]{20,}"),  # Docker
    (("npm_",), r"npm_[A-Za-z0-9]{20,}"),
    (("pypi-",), r"pypi-[A-Za-z0-9_\-]{32,}"),
    (("k_live_", "k_test_"), r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),  # Stripe
    (("SG.",), r"SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}"),  # SendGrid
    (("SK",), r"SK[0-9a-f]{32}(?![0-9a-f])"),  # Twilio
    (("xox", "xapp-"), r"xox[abeoprs]-[A-Za-z0-9\-]{10,}|xapp-[A-Za-z0-9\-]{10,}"),  # Slack
    (("hooks.slack",), r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_\-]+"),
    (("hvs.", "hvb.", "hvr."), r"hv[sbr]\.[A-Za-z0-9_\-]{20,}"),  # Vault
    (("AGE-SECRET",), r"AGE-SECRET-KEY-1[0-9A-Z]{20,}"),
    (
        ("secret-", "secret_", "token-", "token_", "tok-", "tok_"),
        r"secret[_\-][0-9a-f]{24,}(?![0-9A-Za-z])|tok(?:en)?[_\-][0-9a-f]{24,}(?![0-9A-Za-z])",
    ),  # made at home
    (("eyJ",), r"eyJ[A-Za-z0-9_\-]{10,}(?:\.[A-Za-z0-9_\-]*){1,4}"),  # JSON web token
    (
        ("PRIVATE KEY",),
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:.*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|.*)",
    ),
)
SHAPES: Final = re.compile("|".join(pattern for _, pattern in _TABLE), re.DOTALL)
LITERALS: Final = tuple(literal for literals, _ in _TABLE for literal in literals)
"""A text without any of these holds no shape: `in` tells that much faster than the pattern."""
