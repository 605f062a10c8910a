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
    (("gh", "github_pat_"), r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"),
    (("gl",), r"gl(?:pat|ptt|dt|rt|cbt|ft|soat|oas)-[A-Za-z0-9_\-.]{16,}"),  # GitLab
    (("hf_", "api_org_"), r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),  # Hugging Face
    (("sk-",), r"sk-(?<![A-Za-z0-9]sk-)[A-Za-z0-9_\-]{20,}"),  # OpenAI, Anthropic; no mask-rcnn-…
    (("gsk_", "r8_"), r"(?:gsk|r8)_[A-Za-z0-9]{20,}"),  # Groq, Replicate
    (("wandb",), r"wandb[^\n]{0,64}?(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])"),  # W&B's looks like a commit
    (("wandb_v1_",), r"wandb_v1_[A-Za-z0-9_]{32,}"),
    (("KGAT_", "LTAI", "AKID"), r"KGAT_[0-9a-f]{32}|LTAI[0-9A-Za-z]{12,}|AKID[0-9A-Za-z]{32}"),  # Kaggle, clouds
    (("FwoGZXIvYXdz", "IQoJb3JpZ2lu"), r"(?:FwoGZXIvYXdz|IQoJb3JpZ2lu)[A-Za-z0-9+/=]{20,}"),  # AWS session token
    (("Q~",), r"[A-Za-z0-9_~.\-]{3}[0-9]Q~[A-Za-z0-9_~.\-]{31,34}"),  # Azure client secret
    (("1//0",), r"1//0[A-Za-z0-9_\-]{40,}"),  # Google refresh token
    (("nvapi-", "xai-", "pplx-", "csk-"), r"(?:nvapi|xai|pplx|csk)-[A-Za-z0-9_\-]{32,}"),  # NVIDIA, xAI, others
    (("pcsk_", "tgp_v1_", "jina_"), r"(?:pcsk|tgp_v1|jina)_[A-Za-z0-9_]{32,}"),  # Pinecone, Together, Jina
    (("rpa_", "fw_"), r"(?<![A-Za-z0-9])(?:rpa_[A-Z0-9]{30,}|fw_[A-Za-z0-9]{22,})"),  # RunPod, Fireworks
    (("ak-", "as-"), r"(?<![A-Za-z0-9])a[ks]-[A-Za-z0-9]{22}(?![A-Za-z0-9])"),  # Modal
    (("ATATT3x", "ATBB", "ATCTT3"), r"(?:ATATT3x|ATBB|ATCTT3)[A-Za-z0-9_\-=]{16,}"),  # Atlassian
    (("dp.",), r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9.]{40,}"),  # Doppler
    ((".atlasv1.",), r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_\-=]{60,}"),  # Terraform
    (("pul-",), r"pul-[0-9a-f]{40}"),  # Pulumi
    (("pscale_",), r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_\-.=]{32,}"),  # PlanetScale
    (("sntry",), r"sntry[su]_[A-Za-z0-9+/=_]{40,}"),  # Sentry
    (("NRAK-", "dt0c01."), r"NRAK-[A-Z0-9]{27}|dt0c01\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),  # New Relic, Dynatrace
    (("key-", "-us"), r"(?<![A-Za-z0-9])(?:key-[0-9a-f]{32}|[0-9a-f]{32}-us[0-9]{1,2})(?![A-Za-z0-9])"),  # mailers
    (("rubygems_", "AKCp"), r"rubygems_[0-9a-f]{48}|AKCp[A-Za-z0-9]{40,}"),  # RubyGems, JFrog
    (("sq0",), r"sq0[a-z]{3}-[A-Za-z0-9_\-]{22,}"),  # Square
    (("ntn_", "lin_api_", "figd_"), r"(?:ntn|lin_api|figd)_[A-Za-z0-9_\-]{30,}"),  # Notion, Linear, Figma
    ((":AA",), r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_\-]{33}"),  # Telegram
    (("/api/webhooks/", "webhook.office"), r"/api/webhooks/[0-9]+/[A-Za-z0-9_\-]+|webhook\.office\.com/[^\s\"'<>]+"),
    (("CCIPAT_", "bkua_", "nfp_", "phx_"), r"(?:CCIPAT|bkua|nfp|phx)_[A-Za-z0-9_]{30,}"),  # CircleCI and others
    (("tskey-",), r"tskey-[a-z]+-[A-Za-z0-9]+(?:-[A-Za-z0-9]+)?"),  # Tailscale
    (("sb_secret_", "sgp_", "rdme_"), r"(?:sb_secret|sgp|rdme)_[A-Za-z0-9_\-]{20,}"),  # Supabase, Sourcegraph, ReadMe
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
        r"secret_[0-9A-Za-z]{43}(?![0-9A-Za-z])|secret[_\-][0-9a-f]{24,}(?![0-9A-Za-z])|tok(?:en)?[_\-][0-9a-f]{24,}(?![0-9A-Za-z])",
    ),  # made at home
    (
        ("eyJ",),
        r"(?:(?<![A-Za-z])|(?<=\\[nrt]))eyJ[h-z0-6][A-Za-z0-9_\-+/]{16,}={0,2}(?:\.[A-Za-z0-9_\-]*){0,4}",
    ),  # JSON web token, or other JSON in base64
    (
        ("PRIVATE KEY",),
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:.*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|.*)",
    ),
)
"""No pattern begins inside of what it has looked through in vain, so all take time in proportion to the text."""
SHAPES: Final = re.compile("|".join(pattern for _, pattern in _TABLE), re.DOTALL)
LITERALS: Final = tuple(literal for literals, _ in _TABLE for literal in literals)
"""A text without any of these holds no shape: `in` tells that much faster than the pattern."""
