"""Secrets in what a run records: values are replaced where a name, or an address, tells of one."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "[redacted]"

_SECRETS = frozenset(
    {
        *("apikey", "authorization", "authtoken", "credential", "credentials", "passphrase"),
        *("passwd", "password", "passwords", "pwd", "secret", "secrets"),
    }
)
# Other keys and tokens belong to dictionaries and texts: input_key, pad_token.
_OF_KEYS = frozenset(
    {
        *("access", "account", "api", "auth", "aws", "azure", "comet", "encryption", "gcp"),
        *("google", "hf", "huggingface", "license", "mlflow", "ngc", "openai", "private"),
        *("secret", "service", "signing", "ssh", "storage", "subscription", "wandb"),
    }
)
_OF_TEXT = frozenset(
    {
        *("additional", "blank", "bos", "class", "cls", "decoder", "dist", "distillation", "end"),
        *("eos", "fill", "image", "image", "last", "mask", "max", "next", "num", "pad", "padding"),
        *("per", "prefix", "register", "sep", "separator", "special", "start", "stop", "unk"),
    }
)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# Both begin where a run of their characters begins: else a long run takes quadratic time.
_ADDRESS = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z0-9+.-]+://)([^/\s@'\"?#]*)@")
_NAME = re.compile(r"""(?<![\w.-])([\w.-]+)['"]?\s*[=:]\s*""")
_VALUE = re.compile(r"""'[^']*'|"[^"]*"|[^\s,;&(){}\[\]'"]+""")
_NO_VALUES = ("None", "True", "False", "''", '""')
_ARGUMENT = re.compile(r"(-{0,2}[A-Za-z_][\w./-]*)=(.*)", re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z_][\w.-]*")


def is_secret(name: str) -> bool:
    """Return whether a name denotes a key, a token, a password or another secret.

    Example:
        >>> from composable._support.secrets import is_secret
        >>> [is_secret(name) for name in ("api_key", "--hf-token", "WANDB_API_KEY", "dbPassword")]
        [True, True, True, True]
        >>> [is_secret(name) for name in ("input_key", "pad_token", "max_tokens", "tokenizer")]
        [False, False, False, False]
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    *_, before, last = ["", *words]
    if last in ("key", "keys"):
        return before in _OF_KEYS
    if last == "token":
        return before not in _OF_TEXT
    return not _SECRETS.isdisjoint(words)


def redact(value: Any) -> Any:
    """Return plain values without their secrets: those under such names, and in texts.

    Args:
        value: Dictionaries and lists of numbers, texts and None.

    Example:
        >>> from composable._support.secrets import redact
        >>> redact({"lr": 0.1, "token": "hf_abc", "logger": "MLFlowLogger(password='x')"})
        {'lr': 0.1, 'token': '[redacted]', 'logger': 'MLFlowLogger(password=[redacted])'}
        >>> redact("postgresql://me:secret@host/runs")
        'postgresql://[redacted]@host/runs'
    """
    if isinstance(value, str):
        return _redact_text(value)
    if isinstance(value, Mapping):
        return {name: _redact_named(name, one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(redact, value)) if type(value) in (list, tuple) else value
    return value


def redact_command(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a command without their secrets.

    Example:
        >>> from composable._support.secrets import redact_command
        >>> redact_command(["train.py", "--api-key", "abc", "--lr=0.1", "HF_TOKEN=abc"])
        ['train.py', '--api-key', '[redacted]', '--lr=0.1', 'HF_TOKEN=[redacted]']
    """
    found: list[str] = []
    follows = False
    for argument in arguments:
        if follows and not argument.startswith("--"):
            found.append(REDACTED)
            follows = False
            continue
        named = _ARGUMENT.fullmatch(argument)
        if named and is_secret(named[1]):
            found.append(f"{named[1]}={REDACTED}")
        else:
            found.append(_redact_text(argument))
        follows = bool(_FLAG.fullmatch(argument)) and is_secret(argument)
    return found


def _redact_named(name: Any, value: Any) -> Any:
    # Numbers and flags are not redacted: max_token=512.
    if isinstance(name, str) and isinstance(value, str) and value and is_secret(name):
        return REDACTED
    return redact(value)


def _redact_text(text: str) -> str:
    text, parts, end = _ADDRESS.sub(_redact_address, text), [], 0
    for name in _NAME.finditer(text):
        if name.start() < end or not is_secret(name[1]):
            continue
        value = _VALUE.match(text, name.end())
        if value and value[0] not in _NO_VALUES:
            parts += [text[end : value.start()], REDACTED]
            end = value.end()
    found = "".join([*parts, text[end:]])
    return found.encode(errors="backslashreplace").decode()  # JSON has no lone surrogates


def _redact_address(match: re.Match[str]) -> str:
    start, user = match[1], match[2]
    # A user alone is a credential of the web only: git@ and the like are names.
    if ":" in user or (user and start.lower().endswith(("http://", "https://"))):
        return f"{start}{REDACTED}@"
    return match[0]
