"""Names of secrets: what an option, a variable or a key is called when its value is a credential."""

import re
from functools import lru_cache
from typing import Final

_BEGIN, _END = r"(?:^|[_\-.\s])", r"(?:$|[_\-.\s\d])"
_STRONG: Final = re.compile(
    r"(?:password|passwd|passphrase|apikey)s?"
    + _END  # as in PGPASSWORD
    + "|"
    + _BEGIN
    + r"pass(?:$|[\s\d])|"  # as in db_pass, while pass_gates are a network's
    + _BEGIN
    + r"(?:pass(?:word|wd|phrase|code)s?|passw|pwd|secrets?|sshpass"
    r"|(?:db|root|user|admin)[_\-]?pw|(?:gh|git|github|gitlab|azure|ado)[_\-]?pat"
    r"|(?:wandb|hf|hugging[_\-]?face|openai|anthropic|comet|neptune|ngc|cohere|mistral|groq|kaggle|clearml)[_\-]?keys?"
    r"|(?:api|access|private|secret|signing|encryption|account|storage|shared|master|license|service|client|app"
    r"|session|deploy|ssh|write|hmac)[_\-\s]?keys?|apikey|accountkey|sharedaccesskey|webhook(?:[_\-]?url)?)" + _END,
    re.IGNORECASE,
)
_WEAK: Final = re.compile(
    _BEGIN
    + r"(?:token|sig|signature)(?:$|[\s\d]|[_\-.](?:read|write|value|prod|dev|test|new|old|v\d+|ci)$)|"
    # while token_map and signature_def are a model's
    + _BEGIN
    + r"(?:(?:access|api|auth|bearer|bot|csrf|github|gitlab|hf|hub|private|refresh|session|wandb)[_\-]?token"
    r"|auth|authorization|credentials?|creds?|dsn|bearer|cookies?|jwt|otp"
    r"|connection[_\-\s]?string|conn[_\-]?str|database[_\-]?url|db[_\-]?url|session[_\-]?(?:id|token)|key[_\-]?pair[_\-]?id"
    r"|sharedaccesssignature|access[_\-]?key[_\-]?id)" + _END,
    re.IGNORECASE,
)
_HARMLESS: Final = re.compile(
    r"(?:^|[_\-.])(?:pad|eos|bos|unk|mask|cls|sep|special|specials|blank|frame|ignore|language|latent|newline"
    r"|patch|placeholder|pooling|query|speech|think|vision|visual|image|audio|video|stop|start|end|begin|eot|eod|first|last"
    r"|next|prev|per|each|every|new|boi|eoi|fim|prefix|suffix|middle|control|extra|sentinel|decoder[_\-]start|max|min|num"
    r"|cost|time|ms|s)[_\-.]tokens?(?:$|[_\-.])"
    r"|token[_\-.]?(?:ids?|type|types|count|counts|len|length|dim|size|s|izer|ization|limit|budget|index|embedding"
    r"|embeddings|dropout|drop|mixing|mixers?|shift|shuffle|level|per|rate|file|path|name|url|uri|scheme|acc|accuracy|loss"
    r"|losses|weights?|weighting|merge|merging|routing|router|dispatch|dispatcher|stats|pooling|sampling|sampler|pruning"
    r"|reduction|selection|mask|masking|probs?|logits|logprobs|frequency|entropy|perplexity|ratio|throughput|window|stride"
    r"|padding|packing|usage|classification|classifier|labels?|head|fusion|positions?|offsets?|latency)(?:$|[_\-.])"
    r"|[_\-.](?:dims?|size|len|length|count|num|types?|index|idx|columns?|fields?|enabled|required|algorithm|format|pattern|ttl"
    r"|timeout|policy|rotation|strength)$"
    r"|(?:password|passwd|secret|key|credentials?)[_\-.](?:file|path|name|id|env|var|length|len|policy)$"
    r"|^(?:old)?pwd$|^pass(?:es)?$|(?:^|[_\-.])(?:per|each|first|second|forward|backward|multi|single|num|all|by|low|high|band|one|two)"
    r"[_\-.]?pass$|auth[_\-.](?:type|method|mode|scheme|provider)$",
    re.IGNORECASE,
)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@lru_cache(maxsize=4096)
def secret_level(name: str) -> int:
    """Return 2 if a name announces a secret, 1 if it may as well be about something else (``token``), 0 if it does not.

    Takes snake_case, kebab-case, dotted names and camelCase, also with capitals in a row (``HFToken``). What machine
    learning calls tokens are none: ``eos_token``, ``max_tokens``, ``token_accuracy``.
    """
    if len(name) > _LONGEST:
        return 0
    split = _HUMP.sub("_", name)
    if _HARMLESS.search(split):
        return 0
    return 2 if _STRONG.search(split) else 1 if _WEAK.search(split) else 0


_LONGEST: Final = 256
