"""A folder of wheels from which hosts without the package start servers: `fleet.wheelhouse`.

    rlboost wheelhouse --to=wheels                    of this installation's versions
    rlboost wheelhouse --to=wheels --add='jax[cuda13]'
    rlboost wheelhouse --script > bootstrap.py        what a host without them runs

Asks the index that pip is set up for. For hosts of another Python or platform than this one give
pip's own options: rlboost wheelhouse --to=wheels -- --platform=… --python-version=3.12
--only-binary=:all:. Our own two wheels are built from the sources given by --source, where there
are some (a checkout).
"""

import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from rlboost_jax.platform import command_parser
from rlboost_jax.platform.private_paths import NotOurs, code_folder

OURS: Final = ("rlboost-jax", "rlboost-kernels")
CHECKOUT: Final = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser.parser("wheelhouse", __doc__)
    parser.add_argument("--to", type=Path, help="the folder; made where missing")
    parser.add_argument("--add", action="append", default=[], help="one requirement more")
    parser.add_argument("--source", type=Path, default=CHECKOUT, help="a checkout of ours")
    parser.add_argument("--script", action="store_true", help="print what a bare host runs")
    parser.add_argument("options", nargs="*", help="of pip, behind --")
    args = parser.parse_args(arguments)
    if args.script:
        print(script(), end="")
        return 0
    if args.to is None:
        parser.error("name a folder with --to, or ask for --script")
    if not (args.source / "kernels" / "pyproject.toml").is_file():
        print(f"error: {args.source} is no checkout; name one with --source", file=sys.stderr)
        return 2
    try:
        code_folder(args.to, "--to")
    except NotOurs as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--to={args.to} is no place for a folder: {error.strerror}")
    return make(args.to, args.source, args.add, args.options)


def script() -> str:
    """Return `bootstrap.py` for a host without the package, with its imports of ours put in."""
    text, owners = (
        CHECKOUT.joinpath("rlboost_jax", *parts).read_text(encoding="utf-8")
        for parts in (("cli", "bootstrap.py"), ("platform", "code_places.py"))
    )
    ours = [line for line in text.splitlines(keepends=True) if line.startswith("from rlboost_jax")]
    assert len(ours) == 1
    return text.replace(ours[0], owners)


def make(to: Path, source: Path, more: Sequence[str], options: Sequence[str]) -> int:
    """Build the wheels; returns pip's exit code.

    Args:
        more: requirements besides ours.
        options: of pip's `download`.
    """
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    ours = (str(source / "kernels"), str(source))
    built = subprocess.run((*pip, "wheel", "--no-deps", f"--wheel-dir={to}", *ours)).returncode
    if built:
        return built
    wheels = [str(path) for name in OURS for path in to.glob(f"{name.replace('-', '_')}-*.whl")]
    lock = source / "requirements.lock"
    words = ("download", f"--dest={to}", f"--constraint={lock}", "--prefer-binary", *options)
    code = subprocess.run((*pip, *words, *wheels, *more, "pip")).returncode
    sources = [path.name for path in to.glob("*.tar.gz")]
    if code == 0 and sources:
        print(
            f"no wheels of {', '.join(sources)}: a host would have to build them", file=sys.stderr
        )
        return 1
    if code == 0:
        size = sum(path.stat().st_size for path in to.glob("*.whl")) / 1e6
        count, version = len([*to.glob("*.whl")]), metadata.version(OURS[0])
        print(f"{to}: {count} wheels, {size:,.0f} MB, for rlboost-jax {version}")
    return code


if __name__ == "__main__":
    sys.exit(main())
