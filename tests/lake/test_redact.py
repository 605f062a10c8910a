"""Redaction: credentials never reach a table; what only sounds like one does."""

import json
import os
import random as randomness
import string
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ranklake.capture.provenance.names import clean
from ranklake.redaction import known_secrets
from ranklake.redaction.identities import without_identities
from ranklake.redaction.randomness import _stretch_of
from ranklake.redaction.redact import REDACTED, redact, redact_arguments, redact_names, redact_uri


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "db_password",
        "AWS_SECRET_ACCESS_KEY",
        "api_key",
        "apiKey-x",
        "hf.token",
        "auth",
        "TOKEN",
        "clientSecret",
    ],
)
def test_texts_under_telling_names_go(name):
    """A text under such a name is replaced, at any depth."""
    assert redact({"a": [{name: "hunter2"}]}) == {"a": [{name: REDACTED}]}
    assert redact({name: ["hunter2", {"now": "hunter3", "n": 1}]}) == {name: [REDACTED, {"now": REDACTED, "n": 1}]}


@pytest.mark.parametrize(
    "harmless",
    [
        {"tokens": "5e9"},
        {"maxTokens": "5e9"},
        {"max_tokens": 5},
        {"token_count": 7},
        {"tokenizer": "gpt2"},
        {"author": "x"},
        {"key": "v"},
        {"password": ""},
        {"secret": True},
        {"url": "https://host/a:b@c"},
        "task-sk-short",
        "the bearer of news",
    ],
)
def test_what_only_sounds_like_one_stays(harmless):
    """Numbers, empty texts, and names that merely contain such a word are kept."""
    assert redact(harmless) == harmless


@pytest.mark.parametrize(
    "text",
    [
        "AKIAABCDEFGHIJKLMNOP",
        "ghp_" + "a" * 36,
        "hf_" + "b" * 34,
        "sk-" + "c" * 40,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
        "https://user:pass@host/path",
        "x-amz-security-token:FwoGZXIvYXdzEJr//////////wEaDA",
        "Authorization: Bearer abcdefghijklmnopqrst",
        "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END",
    ],
)
def test_texts_of_telling_shapes_go_anywhere(text):
    """Such a text is replaced under any name, also within a longer one."""
    assert REDACTED in redact({"x": f"before {text}"})["x"]
    assert "pass@" not in redact(text)


SEEDS = st.integers(0, 2**32).map(randomness.Random)
"""Not hypothesis's own randomness, which tries what is not random at all, such as forty times the letter a."""
BASE62 = string.ascii_letters + string.digits
SHAPES = {
    "base62": (BASE62, 40, ""),
    "base64url": (BASE62 + "-_", 43, ""),
    "base64": (BASE62 + "+/", 44, ""),
    "base36": (string.ascii_lowercase + string.digits, 40, ""),
    "base32": (string.ascii_uppercase + "234567", 52, ""),
    "github": (BASE62, 36, "ghp_"),
    "github_pat": (BASE62, 60, "github_pat_"),
    "hugging_face": (BASE62, 34, "hf_"),
    "openai": (BASE62, 48, "sk-proj-"),
    "gitlab": (BASE62, 20, "glpat-"),
    "slack": (BASE62, 24, "xoxb-"),
    "aws": (string.ascii_uppercase + string.digits, 16, "AKIA"),
    "databricks": ("0123456789abcdef", 32, "dapi"),
    "web_token": (BASE62, 30, "eyJhbGciOiJIUzI1NiJ9.eyJ"),
    "npm": (BASE62, 36, "npm_"),
    "langsmith": ("0123456789abcdef", 32, "lsv2_pt_"),
    "supabase": ("0123456789abcdef", 40, "sbp_"),
    "shopify": ("0123456789abcdef", 32, "shpat_"),
}
PREFIXED = {
    "wandb_v1": (BASE62, 77, "wandb_v1_"),
    "kaggle": ("0123456789abcdef", 32, "KGAT_"),
    "alibaba": (BASE62, 20, "LTAI"),
    "tencent": (BASE62, 32, "AKID"),
    "aws_session": (BASE62 + "/+", 200, "IQoJb3JpZ2luX2Vj"),
    "azure": (BASE62 + "_-", 34, "a1B8Q~"),
    "google_refresh": (BASE62 + "-_", 60, "1//0"),
    "nvidia": (BASE62 + "-_", 64, "nvapi-"),
    "xai": (BASE62, 80, "xai-"),
    "perplexity": (BASE62, 48, "pplx-"),
    "pinecone": (BASE62, 60, "pcsk_"),
    "runpod": (string.ascii_uppercase + string.digits, 38, "rpa_"),
    "fireworks": (BASE62, 24, "fw_"),
    "modal": (BASE62, 22, "ak-"),
    "atlassian": (BASE62 + "_-", 100, "ATATT3x"),
    "doppler": (BASE62, 43, "dp.pt."),
    "terraform": (BASE62, 67, "abcdefghijklmn.atlasv1."),
    "pulumi": ("0123456789abcdef", 40, "pul-"),
    "planetscale": (BASE62, 43, "pscale_tkn_"),
    "sentry": ("0123456789abcdef", 64, "sntryu_"),
    "new_relic": (string.ascii_uppercase + string.digits, 27, "NRAK-"),
    "mailgun": ("0123456789abcdef", 32, "key-"),
    "rubygems": ("0123456789abcdef", 48, "rubygems_"),
    "square": (BASE62 + "-_", 22, "sq0atp-"),
    "notion": (BASE62, 46, "ntn_"),
    "linear": (BASE62, 40, "lin_api_"),
    "figma": (BASE62 + "-_", 40, "figd_"),
    "telegram": (BASE62 + "-_", 33, "123456789:AA"),
    "discord_webhook": (BASE62 + "-_", 68, "https://discord.com/api/webhooks/123456789012345678/"),
    "circleci": (BASE62, 60, "CCIPAT_"),
    "tailscale": (BASE62, 20, "tskey-auth-"),
    "sourcegraph": ("0123456789abcdef", 40, "sgp_"),
    "neptune": (BASE62, 120, "eyJhcGlfYWRkcmVzcyI6"),
} | {name: shape for name, shape in SHAPES.items() if shape[2]}
"""Found by what comes before alone, in names, too."""
"""Found wherever they stand: alphabet, length, what comes before."""

WEAK = {"hex": ("0123456789abcdef", 40, ""), "short": (BASE62, 10, ""), "word": (string.ascii_lowercase, 9, "")}
"""Found only where a name, an option or a URL tells what they are."""

TELLING = (
    '{{"password": "{0}"}}',
    '{{\\"api_key\\": \\"{0}\\"}}',
    "export WANDB_API_KEY={0}",
    "PASSWORD='{0}' python train.py",
    "train.py --api-key {0} --lr 1",
    "train.py --token={0}",
    "db.password={0}",
    "https://user:{0}@example.org/x.git",
    "https://{0}@example.org/x.git",
    "postgresql://user:{0}@host:5432/db",
    "s3://bucket/x?versionId=3&secret={0}&y=1",
    '+    password = "{0}"',
    "AccountName=x;AccountKey={0};EndpointSuffix=y",
)
ANYWHERE = (
    "{0}",
    "failed with {0}, giving up",
    "/home/someone/{0}/train.log",
    "loss/{0}",
    "Authorization: Bearer {0}",
    "curl -H 'X-Custom: {0}' https://example.org",
    "+x = call({0!r})",
    "https://example.org/{0}",
    "wandb login {0}",
)


def drawn(random, shape):
    """Return a token of a shape."""
    alphabet, length, prefix = shape
    return prefix + "".join(random.choice(alphabet) for _ in range(length))


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from(sorted(SHAPES)), st.sampled_from(ANYWHERE + TELLING))
def test_tokens_of_telling_or_random_shape_never_come_out(random, shape, place):
    """A credential with a known prefix, or one drawn at random, is found in any text, list, value and key."""
    token = drawn(random, SHAPES[shape])
    text = place.format(token)
    assert token not in json.dumps(redact({"x": [text], text: 1}))


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from(sorted(PREFIXED)), st.sampled_from(ANYWHERE + TELLING))
def test_tokens_with_a_known_prefix_are_no_names(random, shape, place):
    """Who puts a credential into the name of a run, a setting or a folder does not have it recorded."""
    token = drawn(random, PREFIXED[shape])
    text = place.format(token)
    assert token not in json.dumps(redact_names({"x": [text], text: 1}))


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from(sorted(SHAPES | WEAK)), st.sampled_from(TELLING))
def test_what_a_name_tells_never_comes_out(random, shape, place):
    """Even a short password, or one that looks like a commit, goes where a name says what it is."""
    token = drawn(random, (SHAPES | WEAK)[shape])
    assert token not in redact(place.format(token))


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.sampled_from(sorted(SHAPES | WEAK)))
def test_arguments_lose_what_telling_options_take(random, shape):
    """Values of options whose names tell are replaced, whatever they look like; the others stay."""
    token = drawn(random, (SHAPES | WEAK)[shape])
    given_ = ["train.py", "--api-key", token, f"--hf-token={token}", f"db.password={token}", "--lr", "3e-4", "-p", "80"]
    kept = [REDACTED, f"--hf-token={REDACTED}", f"db.password={REDACTED}"]
    assert redact_arguments(given_) == ["train.py", "--api-key", *kept, "--lr", "3e-4", "-p", "80"]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.integers(0, 199))
def test_redacting_is_repeatable_and_never_raises(text, cut):
    """What comes out stays as it is when it is redacted again."""
    once = redact(text[cut:] + text)
    assert redact(once) == once


@pytest.mark.parametrize(
    "harmless",
    [
        "0a4d55a8d778e5022fab701977c5d840bbc486d0",  # a commit
        "sha256:" + "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "GPU-5a3f9c4e-1b2d-4c3e-8f5a-6b7c8d9e0f1a",
        "/mnt/data/experiments/gpt-small/2026-11-22T01-30-56/checkpoints/step_00012000/model.safetensors",
        "nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux_2_27_x86_64.whl",
        "torch==2.13.0+cu128 --index-url https://download.pytorch.org/whl/cu128",
        "transformers.models.llama.modeling_llama.LlamaForCausalLM",
        "0.000123456789012345678901234567890",
        "git@github.com:someone/ranklake.git",
        "s3://bucket/datasets/fineweb-edu/sample-10BT/train-00000-of-00014.parquet",
        "def login(self, token=None, auth=auth, password=password):",
        "    token = self.next_token()",
        "step 12 tokens=4096 max_tokens: 5 token_ids=[1, 2]",
        "CUDA_VISIBLE_DEVICES=0,1,2,3 NCCL_SOCKET_IFNAME=eth0 torchrun --nproc-per-node 4 train.py",
        {"eos_token": "</s>", "pad_token": "<pad>", "special_tokens": ["<s>"], "tokenizer_name": "gpt2"},
        {"forward_pass": "x", "token_type": "bpe", "password_file": "/run/x", "PWD": "/home/x"},
        {"lr": 1e-3, "n": 12345678901234567890, "on": True, "none": None},
    ],
)
def test_ordinary_things_of_the_field_stay(harmless):
    """Commits, digests, UUIDs, paths, numbers, wheels, code and the tokens of language models are left alone."""
    assert redact(harmless) == harmless


def test_few_lines_of_real_text_change():
    """Of the source of Python's standard library and the documents here, at most one line in 2000 is changed."""
    folders = [Path(os.__file__).parent, Path(__file__).parents[2] / "docs"]
    files = [file for folder in folders for file in sorted(folder.glob("*.*")) if file.suffix in {".py", ".md"}][::4]
    lines = [line for file in files for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    changed = [line for line in lines if redact(line) != line]
    assert len(lines) > 20_000
    assert len(changed) * 2000 <= len(lines), changed


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://user:pass@host/x.git", "https://host/x.git"),
        ("https://abc@host:8080/x", "https://host:8080/x"),
        ("git@host:a/b.git", "host:a/b.git"),
        ("ssh://git@host/a", "ssh://host/a"),
        ("/data/a@b/c", "/data/a@b/c"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("https://h/x?sig=abcdef123&v=2", f"https://h/x?sig={REDACTED}&v=2"),
        ("https://h/x?X-Amz-Signature=ab12&v=2", f"https://h/x?X-Amz-Signature={REDACTED}&v=2"),
    ],
)
def test_uris_lose_their_user_and_what_signs_them(uri, shown):
    """Who asked and with which right is left out; the place and the version stay."""
    assert redact_uri(uri) == shown


UNITS = (
    *(
        "eyJ",
        "eyJh",
        ".",
        "token=",
        "token",
        "password",
        '"',
        "'",
        "\\",
        "://",
        "@",
        ":",
        "x=",
        "a(",
        "a[",
        "--key ",
        "-p",
    ),
    *("bearer ", "Basic", "authorization: ", "wandb", "-----BEGIN ", "PRIVATE KEY", "-----", "-----END ", "SG.", "_ZN"),
    *("curl ", "-u", "mysql ", "login ", "machine ", "api key provided: ", "0", "1_", "sk-", "secret_", "hf_", "md5-"),
    *(
        "abcdefgh",
        "Zq8",
        "fe80::",
        "::",
        "~a",
        "/home/",
        "users",
        "10.0.0.",
        "$",
        "<",
        "\n",
        " ",
        "AccountKey=",
        "0123456789",
    ),
)
"""What patterns begin with, go on with or end at."""


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(UNITS), min_size=1, max_size=4))
@example(["eyJ"])
@example(["token=", "a("])
@example(["token=", "'"])
@example(["://", ":", "b"])
@example(["::"])
@example(["://", "@"])
@example(["-----BEGIN PRIVATE KEY"])
def test_time_grows_with_the_text_and_no_faster(units):
    """A line of nothing but beginnings of credentials held the interpreter's lock for seconds, and training with it."""
    unit = "".join(units)
    short, long = (f"a@b {unit * (length // len(unit))}z" for length in (8_000, 64_000))

    def spent_s(text):
        began = time.process_time()
        redact(text)
        without_identities(text)
        return time.process_time() - began

    # Of what is quadratic, the longer text takes 64 times as long.
    assert any(spent_s(long) < 24 * spent_s(short) + 0.02 for _ in range(4)), unit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pa/ss@host/x", "https://[redacted]@host/x"),
        (
            "see https://me:p@ss@host/x, and http://host:8080/a@b",
            "see https://[redacted]@host/x, and http://host:8080/a@b",
        ),
        ("a://u:p@h b://v:q@i", "a://[redacted]@h b://[redacted]@i"),
        ("postgres://u:8080@h", "postgres://[redacted]@h"),
        ("ssh://host:22/a@b c://u:p@h", "ssh://host:22/a@b c://[redacted]@h"),
    ],
)
def test_users_of_urls_among_others(text, shown):
    """A password may hold what else ends it; a port is none."""
    assert redact(text) == shown


COMMANDS = [
    ["curl", "-u", "alice:{0}", "https://example.org"],
    ["/usr/bin/curl", "-sSualice:{0}", "https://example.org"],
    ["curl", "--user", "alice:{0}", "--proxy-user", "bob:{0}", "https://example.org/?a=1&b=2"],
    ["curl", "--user=alice:{0}", "https://example.org"],
    ["mysql", "-u", "root", "-p{0}", "db"],
    ["mysqldump", "-p{0}"],
    ["sshpass", "-p", "{0}", "ssh", "host"],
    ["redis-cli", "-a", "{0}", "get", "x"],
]


@pytest.mark.parametrize("secret", ["s3cret", "hunter", "pass:word", "0123456789abcdef"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_commands_take_by_short_options_goes(command, secret):
    """As a list of arguments, as a line, as a line quoted and broken, in a log: the secret goes, the user stays."""
    arguments = [one.format(secret) for one in command]
    line = " ".join(arguments)
    quoted = " \\\n  ".join(f"'{one}'" if secret in one and ":" in one else one for one in arguments)
    for shown in (redact_arguments(arguments), redact(arguments), redact(f"run: {line} && true"), redact(quoted)):
        assert secret not in str(shown)
        assert command[0] in str(shown)
        assert ("alice" in line) == ("alice" in str(shown))


@pytest.mark.parametrize(
    "text",
    [
        "machine api.wandb.ai login user password {0}",
        "machine api.wandb.ai\n  login user\n  password {0}\n",
        "default login me account x password {0}",
        "login user password {0}1",
    ],
)
@pytest.mark.parametrize("secret", ["hunter", "0123456789abcdef0123456789abcdef01234567"])
def test_lines_of_a_netrc_lose_their_password(text, secret):
    """On one line or three."""
    assert secret not in redact(text.format(secret))


@pytest.mark.parametrize(
    "harmless",
    [
        "mysql -p db",
        "mkdir -p build && python -u train.py",
        "ssh -p 2222 host",
        "docker run -u 1000:1000 image",
        "curl -sSL https://example.org -o out",
        "curl x && docker run -u 1000:1000 image",
        "login with password authentication",
        "the mysql server listens on -p its port",
        "sort -u a:b",
    ],
)
def test_short_options_that_are_no_secrets_stay(harmless):
    """The same letters mean other things elsewhere."""
    assert redact(harmless) == harmless
    assert redact(harmless.split()) == harmless.split()


def test_a_key_of_weights_and_biases_is_no_commit():
    """Forty hexadecimal digits are a commit, but not behind that name."""
    key = "0123456789abcdef0123456789abcdef01234567"
    for line in (f'wandb.login(key="{key}")', f"--wandb_key {key}", f"WANDB key: {key}".lower()):
        assert key not in redact(line)
    assert redact(f"git checkout {key}") == f"git checkout {key}"


def test_long_runs_are_not_remembered():
    """What is kept of thousands of pictures in base64 would be thousands of pictures."""
    generator = randomness.Random(1)
    picture = "".join(generator.choices(string.ascii_letters + string.digits, k=10_000))
    before = _stretch_of.cache_info().currsize
    assert redact(picture) == REDACTED
    assert _stretch_of.cache_info().currsize == before


@pytest.mark.parametrize(
    "given",
    [
        {"HFToken": "hunter2"},
        {"AUTH_TOKEN_PROD": "hunter2", "github_token_ci": "hunter2", "token2": "hunter2", "db_pass": "hunter2"},
        {"AWSSecretKey": "hunter2"},
        {"PGPASSWORD": "hunter2"},
        {"wandb_key": "hunter2"},
        {"GITHUB_PAT": "hunter2"},
        {"env": [{"name": "HF_TOKEN", "value": "hunter2"}]},
        {"args": ["train.py", "--api-key", "hunter2"]},
        "PGPASSWORD=hunter2 psql",
        "DB_PW=hunter2",
        "Authorization: Bearer hunter2",
        "{'authorization': 'token hunter2'}",
        "authorization=Bearer hunter2",
        "Incorrect API key provided: hunter2.",
        "the password is hunter2",
        "wandb.login(key='hunter2')",
        "train -token hunter2",
        '+    password: str | None = "hunter2"',
        "api_key: Optional[str]='hunter2'",
        "secret-0123456789abcdef01234567",
    ],
)
def test_names_and_phrases_that_tell(given):
    """Names with capitals in a row or nothing between their words, headers, errors, options, pairs."""
    shown = json.dumps(redact(given))
    assert REDACTED in shown
    assert "hunter2" not in shown
    assert "0123456789abcdef01234567" not in shown


@pytest.mark.parametrize(
    "harmless",
    [
        "mask-rcnn-coco-2017-finetune-run7",
        "/ckpt/task-classification-imagenet-resnet/epoch=3.ckpt",
        "risk-model-transformer-large-v12",
        "password_field_dim=64",
        "train/token_accuracy=0.93 tokens_per_s=1e5 num_tokens=4096",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE",
        "authorization: see the manual",
        "the password is wrong",
        "def login(token: str | None = None, password: str = getpass()):",
        {
            "password_field_dim": "64",
            "token_accuracy": "high",
            "token_loss": "mean",
            "moe_token_dispatcher": "alltoall",
        },
        {"auth": "none", "use_auth_token": "True", "patch_token": "<p>", "session_timeout": "5m"},
        {"name": "lr", "value": "cosine"},
        {
            "token_map": "a1.json",
            "token_lm": "gpt2",
            "pass_gates": "x1",
            "signature_def": "serving1",
            "token_mixer": "a2",
        },
        {"class_token": "[CLS]", "init_token": "<sos>", "oov_token": "<unk>"},
        "token_mixers=InceptionDWConv2d token_map=a1.json pass_gates=x1",
        ["--lr", "3e-4", "--tokenizer", "gpt2"],
    ],
)
def test_names_of_experiments_and_settings_stay(harmless):
    """A name that ends in -sk, a setting about tokens or passwords, a symbol of C++, prose."""
    assert redact(harmless) == harmless


HEX = "9a6656c90bd5482a90a29b9fa5ff5180bc0dbc0e"


@pytest.fixture
def nothing_known():
    """Have no secrets known before and after."""
    known_secrets.forget()
    yield
    known_secrets.forget()


def test_what_the_process_holds_as_a_secret_goes_wherever_it_stands(nothing_known):
    """Though it looks like a commit or a word with a number: as a text, in paths, in names, in a URL's encoding."""
    places = ["{0}", "ckpt-{0}/step", "loss/{0}", "{0}{0}", "got {0}, gave up"]
    assert redact(f"at {HEX}") == f"at {HEX}"
    known_secrets.learn_variables(
        {"WANDB_API_KEY": HEX, "DATABASE_URL": "postgres://u:Sw0rd+fish@h/d", "LR": "1e-3-cosine"}
    )
    known_secrets.learn_arguments(
        ["train.py", "--db-password", "opt1on-word", "hub.token=0123456789abcdef01", "--lr", "5e-4"]
    )
    known_secrets.learn_settings({"store": {"passwords": {"a": ["c0nfig-word"]}}, "model": "llama-3-8b-instruct"})
    for secret in (HEX, "Sw0rd+fish", "Sw0rd%2Bfish", "opt1on-word", "0123456789abcdef01", "c0nfig-word"):
        for place in places:
            assert secret not in redact(place.format(secret))
    assert redact("llama-3-8b-instruct 1e-3-cosine 5e-4") == "llama-3-8b-instruct 1e-3-cosine 5e-4"


def test_words_paths_and_numbers_under_telling_names_are_not_known(nothing_known):
    """They stand elsewhere for something else: a database's password may be its name."""
    values = ["postgres", "/run/secrets/key1", "12345678", "$(cat key1234)", "short1", "a sentence of 3 words", ""]
    known_secrets.learn_variables({f"A{n}_PASSWORD": value for n, value in enumerate(values)})
    known_secrets.learn_variables({"TOKENIZER": "gpt2-large-v2-tokenizer", "AUTH": "kerberos5"})
    for value in [*values, "gpt2-large-v2-tokenizer", "kerberos5"]:
        assert redact(f"x {value}") == f"x {value}"


def test_of_secrets_not_more_are_known_than_can_be_looked_for(nothing_known):
    """An environment of thousands of them does not make each line slow."""
    known_secrets.learn_variables({f"A{n}_SECRET": f"secret{n}x{n}" for n in range(10_000)})
    text = "step 12 " * 1000
    before = time.process_time()
    for _ in range(20):
        redact(text)
    assert time.process_time() - before < 1


NAMES = (Path(__file__).parents[1] / "support" / "innocent_names.txt").read_text(encoding="utf-8").splitlines()
INNOCENT = [name for name in NAMES if name and not name.startswith("#")]


def test_names_that_people_gave_stay():
    """Of systems, models, files, devices, containers and commits: by themselves, in a sentence, under a plain key."""
    assert len(INNOCENT) > 100
    assert [name for name in INNOCENT if redact(name) != name] == []
    told = [f"run {name} of 8, see {name}.log" for name in INNOCENT]
    assert [line for line in told if redact(line) != line] == []
    assert redact({"system": {name: [name] for name in INNOCENT}}) == {"system": {name: [name] for name in INNOCENT}}
    assert redact_names(INNOCENT) == INNOCENT
    assert [name for name in INNOCENT if "redacted" in clean(name)] == []


def test_no_name_hides_a_secret():
    """A token of each shape goes from behind, before and within each of these names; most often the name stays."""
    random = randomness.Random(7)
    for name in INNOCENT[::6]:
        for shape in SHAPES.values():
            token = drawn(random, shape)
            for text in (f"{name} {token}", f"{name}/{token}", f"{token}_{name}", f"{name}={token}"):
                assert token not in redact(text), text
            assert redact(f"{name} {token}").startswith(name)


def test_names_of_temporary_folders_stay():
    """What tempfile and mktemp call a folder is short and drawn at random, and no secret, wherever the folder lies."""
    random = randomness.Random(11)
    python, mktemp = string.ascii_lowercase + string.digits + "_", string.ascii_letters + string.digits
    drawn_names = ["tmp" + "".join(random.choices(python, k=8)) for _ in range(200)]
    drawn_names += ["tmp." + "".join(random.choices(mktemp, k=10)) for _ in range(200)]
    paths = [path for name in drawn_names for path in (f"/tmp/suite/{name}/lake", f"/tmp/{name}")]
    assert [path for path in paths if redact(path) != path] == []
