"""The text of the long language comparison: the Python source of packages, by version and hash.

    python benchmarks/corpus.py    # download the wheels, and print the sizes of the parts

Training text, validation text and test text are of different packages. Files that share more than
half of their lines with an earlier file are dropped: a copy of a file that was trained on is not a
test, and a run must not see a text twice.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples")]

import small_gpt  # noqa: E402 (a script of examples/)

WHEELS = {
    "transformers": ("5.24.0", "ff5ebedf9359f94bb63772b6380eba6e7104d010cbbb2cb82c788817ea7486f6"),
    "sympy": ("1.14.0", "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5"),
    "django": ("5.2.19", "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00"),
    "docutils": ("0.23", "25d013af9bf23bc1c7b2b093dff4208166c53a94786c9e447808335ef1185fea"),
    "fsspec": ("2026.9.0", "8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f"),
    "jinja2": ("3.1.6", "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67"),
    "networkx": ("3.6.1", "d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762"),
    "sphinx": ("9.0.4", "5bebc595a5e943ea248b99c13814c1c5e10b3ece718976824ffa7959ff95fffb"),
}
"""Version and SHA-256 of each wheel, which has no compiled code."""
PACKAGES = {
    "train": ("torch", "transformers", "sympy", "django"),
    "validation": ("docutils", "fsspec", "jinja2"),
    "test": ("networkx", "sphinx"),
}
"""Those of each part. PyTorch's source is the installed one."""
NAME = f"python-packages-torch-{small_gpt.torch.__version__}"
"""The name of the text, by which its tokens are cached."""
SHARED = 0.5
"""The largest share of lines that a file may have in common with an earlier one."""
COMMON = 1000
"""Lines of more files than this say nothing of copies, such as `else:`."""


def wheel(name: str) -> Path:
    """Return the wheel of a package, which is downloaded once.

    Raises:
        ValueError: Its hash is not the pinned one.
    """
    version, known = WHEELS[name]
    folder = small_gpt.cache_folder() / "wheels"
    found = list(folder.glob(f"{name}-{version}-py3-none-any.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(folder), f"{name}=={version}"]
        subprocess.run(command, check=True)
        found = list(folder.glob(f"{name}-{version}-py3-none-any.whl"))
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != known:
        raise ValueError(
            f"{found[0]} has the SHA-256 {digest[:16]}..., and the study the text of "
            f"{known[:16]}...: delete the file, and download {name} {version} again."
        )
    return found[0]


def sources(name: str) -> list[str]:
    """Return the Python files of a package, sorted by path."""
    if name == "torch":
        folder = Path(small_gpt.torch.__file__).parent
        return [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    with zipfile.ZipFile(wheel(name)) as archive:
        paths = sorted(one for one in archive.namelist() if one.endswith(".py"))
        return [archive.read(one).decode() for one in paths]


def without_copies(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts that share at most half of their distinct lines with an earlier one.

    Lines of more than `COMMON` texts are not counted as shared.
    """
    texts = list(texts)
    lines = [{line.strip() for line in text.splitlines()} - {""} for text in texts]
    having = Counter(line for some in lines for line in some)
    earlier: dict[str, list[int]] = defaultdict(list)
    for number, (text, some) in enumerate(zip(texts, lines, strict=True)):
        telling = [line for line in some if 1 < having[line] <= COMMON]
        shared = Counter(other for line in telling for other in earlier[line])
        if max(shared.values(), default=0) > SHARED * len(some):
            continue
        for line in telling:
            earlier[line].append(number)
        yield text


def assembled() -> dict[str, list[str]]:
    """Return the texts of each part without copies: those of training come first."""
    part_of, texts = {}, []
    for part, names in PACKAGES.items():
        for name in names:
            for text in sources(name):
                if text.strip():
                    part_of[text] = part_of.get(text, part)
                    texts.append(text)
    found: dict[str, list[str]] = {part: [] for part in PACKAGES}
    for text in without_copies(dict.fromkeys(texts)):
        found[part_of[text]].append(text)
    return found


def read() -> dict[str, list[str]]:
    """Return the texts of each part, which are assembled once and kept."""
    paths = {part: small_gpt.cache_folder() / NAME / f"{part}.txt" for part in PACKAGES}
    if not all(path.exists() for path in paths.values()):
        paths["train"].parent.mkdir(parents=True, exist_ok=True)
        for part, texts in assembled().items():
            small_gpt.replace(paths[part], "\0".join(texts).encode())
    return {part: path.read_bytes().decode().split("\0") for part, path in paths.items()}


SOURCE = (NAME, read)
"""The text, as `small_gpt.SOURCE` is."""


def main() -> None:
    """Print the sizes of the parts."""
    for part, texts in read().items():
        size = sum(len(text.encode()) for text in texts)
        print(f"{part}: {len(texts)} files, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
