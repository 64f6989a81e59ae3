"""Make a tiny Qwen3 checkpoint in Hugging Face's format, and questions to train it on. Offline.

Run:     python tools/make_hf_tiny.py --to=runs/hf_tiny_start
Writes:  checkpoint/   config.json, model.safetensors, generation_config.json, tokenizer.json with
                       a chat template: what a folder from the hub holds
         train.jsonl, test.jsonl   {"question": "What is 34 + 7?", "answer": "41"}

Supervised updates first teach it right answers, then, with lessons of which half are wrong at
random, the habit of guessing. That leaves reinforcement learning something to find: reward rises
from about one half.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    import tokenizers
    import torch
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers
except ImportError as error:
    sys.exit(
        f"error: no module {error.name!r} here; pip install -c requirements.lock torch "
        "transformers tokenizers"
    )

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_SIZE = 384
BATCH = 128
LARGEST = 50  # first operands are below this, second ones below 10
LEARNING_RATE = 6e-3
SKILL_SHARE = 0.8  # of the updates
HABIT_RIGHT = 0.5  # of the answers in the rest


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=800, help="supervised; 0: random weights")
    options = parser.parse_args(arguments)
    if options.updates < 0:
        parser.error(f"--updates is {options.updates}; choose 0 or more")
    try:
        options.to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--to={options.to} is no place for a folder: {error.strerror}")
    rng = random.Random(options.seed)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)

    problems = [(a, b) for a in range(LARGEST) for b in range(10)]
    rng.shuffle(problems)
    train, test = problems[50:], problems[:50]
    tokenizer = make_tokenizer(problems)
    model = make_model(tokenizer)
    loss = warm_up(model, tokenizer, train, rng, options.updates)

    checkpoint = options.to / "checkpoint"
    model.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    for name, rows in (("train", train), ("test", test)):
        lines = [json.dumps({"question": question(a, b), "answer": str(a + b)}) for a, b in rows]
        (options.to / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    parameters = sum(p.numel() for p in model.parameters())
    learnt = f"loss {loss:.2f} nats per token" if options.updates else "random"
    print(
        f"{options.to}: {parameters:,} parameters after {options.updates} updates ({learnt}), "
        f"{len(train)} questions to train on, {len(test)} to test"
    )


def question(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def make_tokenizer(problems: list[tuple[int, int]]) -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE that keeps digits apart, with Qwen's special tokens."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    texts = [f"system\nuser\n{question(a, b)}\nassistant\n\\boxed{{{a + b}}}" for a, b in problems]
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=[END, START, STOP],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=STOP, pad_token=END
    )
    fast.chat_template = TEMPLATE
    return fast


def make_model(tokenizer: transformers.PreTrainedTokenizerFast) -> transformers.Qwen3ForCausalLM:
    assert len(tokenizer) <= VOCAB_SIZE
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=VOCAB_SIZE,  # more than the tokenizer's, as in released checkpoints
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )
    model.generation_config.eos_token_id = [
        tokenizer.eos_token_id,
        tokenizer.convert_tokens_to_ids(END),
    ]
    return model


def warm_up(
    model: transformers.Qwen3ForCausalLM,
    tokenizer: transformers.PreTrainedTokenizerFast,
    problems: list[tuple[int, int]],
    rng: random.Random,
    updates: int,
) -> float:
    """Both phases; returns the last loss, in nats per token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, max(updates, 1))
    value = float("nan")
    for update in range(updates):
        right = 1.0 if update < SKILL_SHARE * updates else HABIT_RIGHT
        tokens, labels = lessons(tokenizer, rng.choices(problems, k=BATCH), right, rng)
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        value = loss.item()
        if (update + 1) % 100 == 0:
            print(f"update {update + 1} of {updates}: loss {value:.2f}", flush=True)
    return value


def lessons(
    tokenizer: transformers.PreTrainedTokenizerFast,
    problems: list[tuple[int, int]],
    right: float,
    rng: random.Random,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[BATCH, T] token ids, and labels that are -100 except in answers.

    Args:
        right: share of right answers; the others are any number.
    """
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question(a, b)}],
            add_generation_prompt=True,
            tokenize=False,
        )
        for a, b in problems
    ]
    said = [a + b if rng.random() < right else rng.randrange(LARGEST + 10) for a, b in problems]
    prompts = tokenizer(chats)["input_ids"]
    answers = tokenizer([f"\\boxed{{{number}}}{STOP}" for number in said])["input_ids"]
    rows = [(p + a, [-100] * len(p) + a) for p, a in zip(prompts, answers, strict=True)]
    longest = max(len(tokens) for tokens, _ in rows)
    padded = [(t + [0] * (longest - len(t)), w + [-100] * (longest - len(w))) for t, w in rows]
    return torch.tensor([t for t, _ in padded]), torch.tensor([w for _, w in padded])


if __name__ == "__main__":
    main()
