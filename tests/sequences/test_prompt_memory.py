"""What is kept of prompts is the newest that fits."""

from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.sequences.prompt_memory import PromptMemory


@given(
    writes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=40),
    most=st.integers(0, 30),
)
def test_the_newest_that_fit_are_kept(writes: list[tuple[int, int]], most: int) -> None:
    memory: PromptMemory[int] = PromptMemory(most)
    kept: list[tuple[bytes, int, int]] = []  # the oldest first
    for value, (name, size) in enumerate(writes):
        prompt = bytes([name]) * 4 * name
        memory.keep(prompt, value, size)
        kept = [one for one in kept if one[0] != prompt] + [(prompt, value, name + size)]
        while sum(tokens for _, _, tokens in kept) > most:
            kept.pop(0)
        assert memory.num_tokens == sum(tokens for _, _, tokens in kept) <= most
        assert len(memory) == len(kept)
    for name in range(6):
        prompt = bytes([name]) * 4 * name
        expected = next((value for one, value, _ in kept if one == prompt), None)
        assert memory.of(prompt) == expected
    memory.drop(b"no such prompt")
